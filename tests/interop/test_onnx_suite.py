"""The backend suite of the ``onnx`` package, case by case; the first case of each set of operators is jitted."""

import warnings
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("onnx")

from interop.onnx_backend import TvmfunBackend, cases

from tvmfun.errors import DtypeError, ProgramError
from tvmfun.interop.onnx import coverage

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # NumPy's, about casts that overflow in expected values
    CASES = cases()


@pytest.mark.quick(
    "test_abs",
    "test_adagrad",
    "test_adam",
    "test_affine_grid_2d",
    "test_attention_4d_gqa",
    "test_averagepool_2d_ceil",
    "test_basic_conv_with_padding",
    "test_batchnorm_example_training_mode",
    "test_cast_FLOAT_to_FLOAT8E4M3FN",
    "test_castlike_UINT4_to_FLOAT",
    "test_center_crop_pad_crop_and_pad",
    "test_compress_0",
    "test_convtranspose_pads",
    "test_dft",
    "test_einsum_batch_matmul",
    "test_gather_elements_negative_indices",
    "test_gemm_all_attributes",
    "test_gradient_of_add_and_mul",
    "test_gridsample_nearest",
    "test_gru_seq_length",
    "test_if",
    "test_if_seq",
    "test_layer_normalization_default_axis",
    "test_loop11",
    "test_lstm_with_peepholes",
    "test_maxpool_with_argmax_2d_precomputed_strides",
    "test_nesterov_momentum",
    "test_nonmaxsuppression_two_classes",
    "test_quantizelinear_blocked_asymmetric",
    "test_range_float_type_positive_delta_expanded",
    "test_reduce_log_sum_exp_keepdims_example",
    "test_reshape_allowzero_reordered",
    "test_resize_downsample_scales_cubic_antialias",
    "test_roialign_aligned_true",
    "test_scan9_sum",
    "test_scatternd_add",
    "test_sce_mean_weight_ii",
    "test_slice_neg_steps",
    "test_string_concat",
    "test_top_k_uint64",
    "test_unique_not_sorted_without_axis",
)
@pytest.mark.parametrize("name", CASES)
def test_case(name):
    try:
        CASES[name]()
    except (AssertionError, DtypeError, ProgramError):
        if coverage.left_out(name, TvmfunBackend.model) is None:
            raise
    else:
        assert coverage.left_out(name, TvmfunBackend.model) is None, "it passes: take it out of LEFT_OUT_CASES"


def test_counts():
    counts = coverage.counts()
    assert sum(counts.values()) == len(CASES)
    without = Counter(
        {reason: n for reason, n in counts.items() if reason not in (coverage.STRINGS, coverage.SEQUENCES)}
    )
    assert without[""] >= 0.95 * without.total()
    training = [
        model
        for name, model in coverage.suite().items()
        if any(entry.domain == "ai.onnx.preview.training" for entry in model.opset_import)
        and coverage.left_out(name, model) is None
    ]
    assert len(training) == 9


def test_the_page_is_what_the_table_says():
    page = (Path(__file__).parents[2] / "docs" / "interop.md").read_text()
    assert page == coverage.updated(page), "run: python -m tvmfun.interop.onnx docs/interop.md"


def test_operators_of_the_standard_are_read_defined_or_left_out():
    from onnx import defs

    newest = {s.name for s in defs.get_all_schemas() if s.domain == "" and not s.deprecated}
    read = set(coverage.TRANSLATIONS) | set(coverage.by_definition())
    assert newest - read == coverage.LEFT_OUT.keys()
    assert not read & coverage.LEFT_OUT.keys()
