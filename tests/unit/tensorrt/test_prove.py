import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.graph.roles import roles_of
from halfwise.records import BuildConfig, EngineLayer, NodeName, Precision
from halfwise.tensorrt.prove import data_type, kernel_precision, layer_precision, prove
from tests.unit.graph.sketch import Sketch, f32

NODES = ("dense", "gelu", "square", "mean")


def network():
    sketch = Sketch()
    hidden = sketch.op("MatMul", sketch.input("x", [1, 4]), f32([[1] * 4] * 4), name="dense")
    hidden = sketch.op("Erf", hidden, name="gelu")
    moved = sketch.op("Transpose", hidden, name="move", perm=[1, 0])
    square = sketch.op("Pow", moved, 2.0, name="square")
    return sketch.network(sketch.op("ReduceMean", square, name="mean", axes=[1]))


def layer(precision, *nodes, kind="kgen", **more):
    name = more.pop("name", " + ".join(nodes) or "Reformat")
    return EngineLayer(name=name, type=kind, nodes=nodes, precision=precision, **more)


def config(**more):
    return BuildConfig(**{"model_sha256": "0", "typing": "weak", "low": "fp16", **more})


def proven(*layers, asked=None, built=None):
    net = network()
    built = built if built is not None else config()
    return prove(layers, net, roles_of(net), asked or {}, built)


def test_shares_of_nodes():
    proof = proven(
        layer("fp16", "dense", "gelu"),
        layer("fp32", "square"),
        layer("other", name="Reformatting CopyNode", kind="Reformat"),
    )
    assert proof.node_share == {"fp16": 0.5, "fp32": 0.25, "other": 0.25}
    assert [(n.node, n.precision) for n in proof.nodes] == [
        ("dense", "fp16"),
        ("gelu", "fp16"),
        ("move", "other"),
        ("square", "fp32"),
        ("mean", "other"),
    ]


def test_a_node_of_several_layers():
    mixed = proven(layer("fp16", "dense"), layer("fp32", "dense", name="bias"))
    assert mixed.nodes[0].precision == "mixed"
    assert mixed.nodes[0].layers == ("dense", "bias")
    moved = proven(layer("fp16", "dense"), layer("other", "dense", name="copy"))
    assert moved.nodes[0].precision == "fp16"
    hidden = proven(layer("fp16", "dense"), layer("unknown", "dense", name="block"))
    assert hidden.nodes[0].precision == "unknown"


def test_without_layers():
    proof = proven()
    assert proof.node_share == {"other": 1.0}
    assert proof.findings == proof.remarks == ()


def test_a_constraint_that_was_not_honoured():
    proof = proven(
        layer("fp16", "square", "mean", inputs=("fp16",), outputs=("fp16",), name="norm"),
        layer("fp32", "gelu"),
        asked=dict.fromkeys(("gelu", "square", "mean"), "fp32"),
    )
    assert proof.findings == (
        "2 of 3 nodes that were to be FP32 compute in FP16: square, mean. "
        "Layer norm reads fp16, gives fp16.",
    )


def test_an_engine_all_in_fp32_although_fp16_was_asked_for():
    layers = (layer("fp32", "dense", "gelu", "square"), layer("tf32", "mean"))
    tf32_on = config(tf32=True)
    assert proven(*layers, built=tf32_on).findings == (
        "The engine computes nothing in FP16, although that was requested: "
        "FP32 in 3 and TF32 in 1 of 4 nodes.",
    )
    everything_kept = dict.fromkeys(NODES, "fp32")
    assert proven(*layers, asked=everything_kept, built=tf32_on).findings == ()
    assert proven(*layers, built=config(low=None, tf32=True)).findings == ()


def test_a_block_may_hide_fp16():
    assert not proven(layer("fp32", "dense"), layer("unknown", "gelu", "square")).findings


def test_tf32_where_fp32_was_meant():
    kernel = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n"
    wrong = layer("tf32", "dense", inputs=("fp32", "fp32"), weights="fp32", tactic=kernel)
    proof = proven(wrong, layer("fp16", "gelu"))
    assert proof.findings == (
        "TF32 is used in 1 layer for 1 node (dense), although it was off. "
        f"Layer dense reads fp32, has weights in fp32, runs {kernel}.",
    )
    allowed = proven(wrong, layer("fp16", "gelu"), asked={"dense": "fp32"}, built=config(tf32=True))
    assert allowed.findings == ()


def test_casts_of_a_strongly_typed_model_that_had_no_effect():
    asked = {"dense": "fp16", "gelu": "fp16", "square": "fp32", "mean": "fp32"}
    proof = proven(
        layer("fp32", "dense"),
        layer("fp16", "gelu", "square"),
        layer("fp32", "mean"),
        asked=asked,
        built=config(typing="strong", low=None),
    )
    assert [finding.partition(": ")[0] for finding in proof.findings] == [
        "1 of 2 nodes that were to be FP32 compute in FP16; casts had no effect",
        "1 of 2 nodes that were FP16 in the model compute in FP32; casts had no effect",
    ]
    nothing = proven(layer("fp32", *NODES), asked=asked, built=config(typing="strong", low=None))
    assert nothing.findings[0].startswith("The engine computes nothing in FP16")


def test_every_type_of_a_plan_is_compared_with_what_was_asked_for():
    asked = {"dense": "tf32", "gelu": "bf16", "square": "fp16", "mean": "fp32"}
    strong = config(typing="strong", low=None, tf32=True)
    right = [layer(type_, node) for node, type_ in asked.items()]
    assert proven(*right, asked=asked, built=strong).findings == ()
    wrong = [
        layer(type_, node)
        for node, type_ in zip(asked, ("fp16", "fp16", "bf16", "tf32"), strict=True)
    ]
    proof = proven(*wrong, asked=asked, built=strong)
    assert [finding.partition(";")[0] for finding in proof.findings] == [
        "1 of 1 node that were to be TF32 compute in FP16",
        "1 of 1 node that were FP16 in the model compute in BF16",
        "1 of 1 node that were BF16 in the model compute in FP16",
    ]
    plain = [layer("fp32", node) for node in asked]
    (finding,) = proven(*plain, asked=asked, built=strong).findings
    assert finding.startswith("The engine computes nothing in FP16 or BF16, although")


def test_one_fused_block_is_unknown_and_says_so():
    block = layer(
        "unknown",
        *(*NODES, "move"),
        kind="Myelin",
        name="{ForeignNode[dense...mean]}",
        inputs=("fp16",),
        outputs=("fp32",),
    )
    proof = proven(block, asked={"square": "fp32"})
    assert proof.node_share == {"unknown": 1.0}
    assert proof.findings == ()
    assert proof.remarks[0] == (
        "The precision is not shown for 4 of 4 compute nodes in 1 layer. "
        "Layer {ForeignNode[dense...mean]} reads fp16, gives fp32."
    )


def test_several_blocks():
    largest = layer("unknown", "move", "square", "mean", kind="Myelin", name="largest")
    proof = proven(layer("unknown", "dense", "gelu", kind="Myelin"), largest)
    assert "4 of 4 compute nodes in 2 layers. Layer largest" in proof.remarks[0]


def test_layers_that_do_not_tell():
    proof = proven(layer("unknown", "dense", kind="gemm"), layer("fp32", "gelu", "square"))
    assert proof.remarks[0] == (
        "The precision is not shown for 1 of 4 compute nodes in 1 layer. Layer dense shows no more."
    )


def test_an_engine_whose_model_is_not_known():
    block = layer("unknown", "a", "b", kind="Myelin", name="{ForeignNode[a...b]}")
    wrong = layer("tf32", "c")
    proof = prove([block, wrong], None, None, {}, config())
    assert proof.nodes == ()
    assert proof.node_share == {}
    assert proof.findings[0].startswith("TF32 is used in 1 layer, although it was off.")
    assert proof.remarks == (
        "The precision is not shown in 1 layer. Layer {ForeignNode[a...b]} shows no more.",
    )


def test_what_could_be_nothing_else_is_fp32():
    block = layer("unknown", *NODES, kind="Myelin")
    proof = proven(block, built=config(low=None), asked={"square": "fp32"})
    assert proof.node_share == {"fp32": 1.0}
    assert proof.remarks == (
        "FP32 is not shown for 1 layer, but certain: nothing else was allowed.",
    )
    mixed = layer("mixed", *NODES)
    assert proven(mixed, built=config(low=None)).node_share == {"fp32": 1.0}
    assert proven(block, built=config(low=None, tf32=True)).node_share == {"unknown": 1.0}
    strong = config(low=None, typing="strong")
    assert proven(block, built=strong, asked={"gelu": "fp16"}).node_share == {"unknown": 1.0}


def test_an_engine_of_unknown_origin():
    net = network()
    proof = prove([layer("tf32", "dense")], net, roles_of(net), {}, None)
    assert proof.findings == proof.remarks == ()


def test_names_only():
    proof = proven(layer("unknown", "dense", "gelu", kind=""))
    assert proof.remarks == (
        "The engine stores only layer names. Build it with detailed profiling verbosity to see "
        "which types it computes in.",
    )


def test_mixed_layers_are_remarked():
    proof = proven(
        layer("mixed", "square", "mean"),
        layer("fp32", "dense"),
        layer("fp16", "gelu"),
        asked={"square": "fp32"},
    )
    assert proof.findings == ()
    (hidden,) = proof.remarks
    assert "not shown for 2 of 4 compute nodes in 1 layer" in hidden


def test_nodes_in_bodies_have_layers_of_their_own():
    then, other = Sketch(), Sketch()
    sketch = Sketch()
    x = sketch.input("x", [4])
    flag = sketch.input("flag", [], 9)
    bodies = {}
    for name, inner in (("then_branch", then), ("else_branch", other)):
        value = inner.op("Exp", x, name=f"{name}_exp")
        bodies[name] = inner.proto(value).graph
    net = sketch.network(sketch.op("If", flag, name="choice", **bodies))
    roles = roles_of(net)
    found = prove([layer("fp16", "then_branch_exp")], net, roles, {}, None)
    precisions = {n.node: n.precision for n in found.nodes}
    assert precisions == {"choice": "other", "then_branch_exp": "fp16", "else_branch_exp": "other"}


def test_outputs_of_the_fp32_engine_settle_what_a_block_hides():
    net = network()
    block = layer("unknown", *NODES, kind="Myelin")
    asked: dict[NodeName, Precision] = {NodeName("square"): "fp32"}
    proof = prove([block], net, roles_of(net), asked, config(), as_fp32=True)
    assert proof.node_share == {"fp32": 1.0}
    assert proof.findings == (
        "The engine computes nothing in FP16, although that was requested: FP32 in 4 of 4 nodes.",
    )
    assert proof.remarks == (
        "FP32 is not shown for 1 layer, but inferred: the outputs match the FP32 engine's bit "
        "for bit.",
    )


QUANTISED: dict[NodeName, Precision] = {NodeName("dense"): "int8", NodeName("square"): "int8"}


def test_int8_is_told_where_it_was_asked_for():
    all_of_it = proven(layer("int8", "dense"), layer("int8", "square"), asked=QUANTISED)
    assert all_of_it.findings == all_of_it.remarks == ()
    some = proven(layer("int8", "dense"), layer("fp16", "square"), asked=QUANTISED)
    assert some.findings == ()
    none = proven(layer("fp32", "dense"), layer("fp16", "square"), asked=QUANTISED)
    (said,) = none.findings
    assert said == (
        "The engine computes nothing in INT8, although that was requested: FP32 in 1 and FP16 in 1 "
        "of 2 nodes."
    )
    hidden = proven(layer("fp16", "dense"), layer("unknown", "square"), asked=QUANTISED)
    assert hidden.findings == ()
    assert "not shown for 1 of" in hidden.remarks[0]
    assert not any("not shown" in remark for remark in (*all_of_it.remarks, *some.remarks))


XMMA = "sm80_xmma_fprop_implicit_gemm_{}_nhwckrsc_nhwc_tilesize128x64x32_stage3_g1_tensor16x8x16"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Row major linear FP32", "fp32"),
        ("Channel major FP16 format where channel % 8 == 0", "fp16"),
        ("Row major linear BFloat16 format", "bf16"),
        ("Channel major INT8 format where column stride % 32 == 0", "int8"),
        ("Row major linear UInt8 format", "uint8"),
        ("N/A due to dynamic shapes", ""),
        ("Half", "fp16"),
        ("Float", "fp32"),
        ("BFloat16", "bf16"),
        ("FP8", "fp8"),
        ("Int64", "int64"),
        ("Bool", "bool"),
        ("Double", "fp64"),
        ("LINEAR", ""),
        ("", ""),
    ],
)
def test_data_types_of_every_version(text, name):
    assert data_type(text) == name


@pytest.mark.parametrize(
    ("tactic", "precision"),
    [
        (XMMA.format("f16f16_f16f16_f16"), "fp16"),
        (XMMA.format("indexed_wo_smem_f16f16_f16f32_f32"), "fp16"),
        (XMMA.format("f32f32_tf32f32_f32"), "tf32"),
        (XMMA.format("indexed_f32f32_f32f32_f32"), "fp32"),
        (XMMA.format("interleaved_i8f32_i8i32_f32"), "int8"),
        (XMMA.format("bf16bf16_bf16f32_f32"), "bf16"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n", "fp8"),
        ("sm50_xmma_cublas_gemvx_f16f16_f32_f32_tn_n_int32_unit_n", "fp16"),
        ("sm50_xmma_fprop_conv2d_c1_k1_f32f32_f32_f32_nchwkcrs_nchw", "fp32"),
        ("trt_turing_cutlass_image_network_first_layer_hmma_fprop_f16f16f32_nhwc", "fp16"),
        ("ampere_h16816cudnn_128x128_ldg8_relu_exp_stages_64x3_large_nhwc_tn_v1", "fp16"),
        ("trt_volta_h884cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1", "fp16"),
        ("volta_s884gemm_64x64_ldg8", "fp16"),
        ("ampere_scudnn_128x64_relu_xregs_large_nn_v1", "fp32"),
        ("maxwell_sgemm_128x64_nn", "fp32"),
        ("volta_fp16_scudnn_fp16_128x32_relu_small_nn_v1", "fp16"),
        ("turing_fp16_s1688cudnn_fp16_256x64_ldg8_relu", "fp16"),
        ("turing_fp32_icudnn_int8x4_128x64_relu", "int8"),
        ("cutlass_80_tensorop_s16816gemm_bf16_256x128_32x3_nn_align8", "bf16"),
        ("cutlass3x_sm90_tensorop_s64x256x8tf32gemm_f32_f32_f32", "tf32"),
        ("fmha_v2_flash_attention_fp16_S_80_sm80_kernel", "fp16"),
        ("__myl_CastMulSum_0xfa6c1858aea1b13b03f90165d7149ec6", None),
        ("_gemm_mha_v2_0xbcebb264ff01c4c4f8078856729f8b7e", None),
        ("cutlass_80_tensorop_d884gemm_64x64", None),
        ("", None),
    ],
)
def test_kernels_by_name(tactic, precision):
    assert kernel_precision(tactic, "") == precision


@pytest.mark.parametrize(
    ("operand", "precision"),
    [("fp32", "tf32"), ("fp16", "fp16"), ("bf16", "bf16"), ("", None)],
)
def test_a_tensor_core_with_fp32_sums_multiplies_what_the_layer_reads(operand, precision):
    assert (
        kernel_precision("cutlass_tensorop_s1688gemm_128x128_16x5_nn_align4", operand) == precision
    )


def kind(kind, inputs, outputs=(), weights="", tactic="", name="layer", tf32=False):
    return layer_precision(kind, name, (inputs, outputs, weights), tactic, tf32=tf32)


def test_layers_without_a_telling_kernel_are_their_data_types():
    assert kind("PointWiseV2", ["fp16", "fp16"], ["fp16"]) == "fp16"
    assert kind("Softmax", ["fp32"], ["fp32"], tf32=True) == "fp32"
    assert kind("kgen", ["fp32"], ["fp16"]) == "mixed"
    assert kind("TopK", ["int64"], ["int32", "bool"]) == "other"
    assert kind("ElementWise", ["fp32", ""], ["fp32"]) == "unknown"
    assert kind("ElementWise", ["fp64"], ["fp64"]) == "unknown"
    assert kind("ElementWise", [], []) == "unknown"


def test_products_are_what_they_multiply_not_what_they_give():
    assert kind("gemm", ["fp16", "fp16"], ["fp32"]) == "fp16"
    assert kind("CaskConvolution", [""], [""], "fp16") == "fp16"
    assert kind("CaskConvolution", ["fp32"], ["fp32"], "int8") == "int8"
    assert kind(
        "gemm", ["fp16", "fp16"], ["fp16"], tactic="sm80_xmma_gemm_f16f16_f16f32_f32_tn"
    ) == ("fp16")


def test_fp32_data_tell_nothing_of_a_product_where_tf32_is_allowed():
    assert kind("CaskConvolution", ["fp32"], ["fp32"], "fp32", tf32=True) == "unknown"
    assert kind("CaskConvolution", ["fp32"], ["fp32"], "fp32", tf32=False) == "fp32"
    assert kind("kgen", ["fp32"], ["fp32"], name="__myl_FcAdd_myl0_3", tf32=True) == "unknown"
    assert kind("kgen", ["fp32"], ["fp32"], name="__myl_MulSum_myl0_3", tf32=True) == "fp32"


def test_a_generated_kernel_that_casts_inside_is_mixed():
    assert kind("kgen", ["fp16"], ["fp16"], name="__myl_CastMulMeanCast_myl0_1") == "mixed"
    assert kind("kgen", ["fp16"], ["fp16"], name="__myl_MulAdd_myl0_1") == "fp16"
    assert kind("kgen", ["fp32"], ["fp32"], name="__myl_CastMulCast_myl0_1") == "mixed"
    assert kind("kgen", ["fp32", "int64"], ["fp32"], name="__myl_CastMul_myl0_1") == "fp32"


def test_what_moves_data_is_other_and_what_is_fused_is_unknown():
    assert kind("Reformat", ["fp32"], ["fp16"]) == "other"
    assert kind("shape_call", [], []) == "other"
    assert kind("Myelin", ["fp32"], ["fp32"]) == "unknown"


def test_a_kernel_of_a_layer_without_data_types_may_tell():
    assert (
        kind("CaskPooling", [""], [""], tactic="sm50_xmma_pooling_max_nhwc_FP16_kernel") == "fp16"
    )


@given(st.text(), st.sampled_from(["", "fp32", "fp16", "int8"]))
def test_any_name_has_an_answer(text, operand):
    kernel_precision(text, operand)
    data_type(text)
    assert kind(text, [operand], [operand], tactic=text)


@given(st.lists(st.sampled_from(["f16", "f32", "tf32", "i8", "bf16", "_"]), min_size=1))
def test_any_run_of_formats_has_an_answer(parts):
    kernel_precision("sm80_xmma_gemm_" + "".join(parts), "")
