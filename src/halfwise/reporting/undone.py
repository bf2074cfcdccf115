"""Words on repairs that were undone or have no place; on INT8: why it has none, where it starts."""

from collections.abc import Mapping

from halfwise.records import RemarkKind

UNDONE_REMARKS: Mapping[RemarkKind, str] = {
    "repair-unmade": "A repair was left out, {rule} at {nodes}: {why}",
    "repair-useless": "A repair was undone, {rule} at {nodes}: everything low [is off by {before} "
    "times what the search allows without it, and by {after} times with it|fails as it does "
    "without it].",
    "repair-dearer": "A repair was undone, {rule} at {nodes}: it is predicted to cost {after} "
    "times what everything low does, and keeping what it mends {before} times.",
    "repair-unproven": "A repair was undone, {rule} at {nodes}: [{mended:element} of "
    "outputs {mended:are} NaN or infinite without it, and something else with it|FP32 is off by "
    "{value} of an output's largest value with it, and by {original} without|it changes an output "
    "by {value} of its largest value][; {elements:d} elements are NaN or infinite with it alone].",
    "repair-failing": "A repair was undone, {rule} at {nodes}: with everything in FP32 too, the "
    "outputs are off by [{after} times what the search allows|more than the search allows].",
    "repair-spare": "A repair was undone, {rule} at {nodes}: the plan needs no more nodes without "
    "it.",
    "unrepaired": "[No engine of the model with {repairs:repair} passed, so this plan is one of "
    "the model without|The best engine that passed is of the model without its {better:repair}, "
    "and so is this plan].",
    "unscaled": "{tensor} is not stored times a power of two: [{maker} ({op}) gives|{reader} "
    "({op}) needs] it as it is.",
    "repair-outdone": "A repair was undone, {rule} at {nodes}: [the plan with it costs "
    "{after} times what everything low does, and one without {before} times|no plan with it "
    "passes].",
    "repair-left": "{elements:d} more repairs were not tried: a run makes {size:d} trials at most.",
    "scale-limited": "For {elements:d} tensors and constants the search for powers of two was "
    "ended at its limit: others may need fewer Muls, or bring into range what these do not.",
    "unranged": "{elements:node} {elements:are} left out of INT8, since the calibration samples "
    "leave what it reads at one value, or without a finite one, from which no range follows: "
    "{tensors}.",
    "start-int8": "The starting plan leaves {elements:node} out of INT8, and {ends}.",
    "int8-untried": "INT8 was not tried: {why}",
    "repair-untried": "Of {size:repair}, {elements:d} were not left out one by one: the plan "
    "passes with all of them, and may do so with fewer.",
}
"""Templates, see `wording.filled`."""
