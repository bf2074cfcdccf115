import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.tensorrt.kernels import data_type, kernel_precision, layer_precision

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
