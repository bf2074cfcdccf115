"""Words on repairs that were undone or do not apply, and on where INT8 starts or is left out."""

from collections.abc import Mapping

from halfwise.records import RemarkKind

UNDONE_REMARKS: Mapping[RemarkKind, str] = {
    "repair-unmade": "A repair was left out, {rule} at {nodes}: {why}",
    "repair-useless": "A repair was undone, {rule} at {nodes}: everything low [is off by {before} "
    "times what the search allows without it, and by {after} times with it|fails as it does "
    "without it].",
    "repair-dearer": "A repair was undone, {rule} at {nodes}: its predicted cost is {after} "
    "times everything low, and keeping the nodes instead costs {before} times.",
    "repair-unproven": "A repair was undone, {rule} at {nodes}: [{mended:element} of "
    "outputs {mended:are} NaN or infinite without it, and something else with it|FP32 is off by "
    "{value} of an output's largest value with it, and by {original} without|it changes an output "
    "by {value} of its largest value][; {elements:d} elements are NaN or infinite only with it].",
    "repair-failing": "A repair was undone, {rule} at {nodes}: even with everything in FP32 the "
    "outputs are off by [{after} times what the search allows|more than the search allows].",
    "repair-spare": "A repair was undone, {rule} at {nodes}: the plan needs no more nodes without "
    "it.",
    "unrepaired": "[No engine of the model with {repairs:repair} passed, so this plan is for "
    "the model without|The best engine that passed is without the {better:repair}, and so is this "
    "plan].",
    "unscaled": "{tensor} is not scaled by a power of two: [{maker} ({op}) gives|{reader} "
    "({op}) needs] it as it is.",
    "repair-outdone": "A repair was undone, {rule} at {nodes}: [the plan with it costs "
    "{after} times what everything low does, and one without {before} times|no plan with it "
    "passes].",
    "repair-left": "{elements:d} more repairs were not tried: a run makes {size:d} trials at most.",
    "scale-limited": "For {elements:d} tensors and constants the search for powers of two hit its "
    "limit: others may need fewer Muls, or bring more into range.",
    "unranged": "{elements:node} {elements:are} left out of INT8: on the calibration samples what "
    "it reads is constant or not finite, so it has no range: {tensors}.",
    "start-int8": "The starting plan leaves {elements:node} out of INT8, and {ends}.",
    "int8-untried": "INT8 was not tried: {why}",
    "repair-untried": "{elements:d} of {size:repair} were not tested one by one: the plan passes "
    "with all of them, and may pass with fewer.",
}
"""Templates, see `wording.filled`."""
