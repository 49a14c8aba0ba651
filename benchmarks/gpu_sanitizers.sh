#!/usr/bin/env bash
# racecheck, memcheck and synccheck over small products by warpgroups, attention and tensor instructions, on a GPU of
# compute capability 9.0. Logs go to the folder $1; the tools $2… run at the same time, by default all three, each for
# at most ${LIMIT:-140} s. A tool that finds something, and a test that fails, is a line that does not end with "exit 0".
set -u
out=${1:?a folder for the logs}
shift
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 PYTHONPATH="${PYTHONPATH:-}:$PWD"
products=tests/kernels/test_wgmma_products.py
attention=tests/kernels/test_wgmma_attention.py
tensor=tests/language/tensor
tests=(
    "$products::test_whole_tiles_of_16_bits_go_through_shared_memory"
    "$products::test_the_end_of_the_computation"
    "$products::test_a_tile_of_every_width_of_other_types[f8e4m3-128]"
    "$products::test_a_tile_of_every_width_of_other_types[f8e5m2-64]"
    "$products::test_a_tile_of_every_width_of_other_types[f32-64]"
    "$products::test_a_tile_of_every_width_of_other_types[i8-64]"
    "$products::test_a_tile_of_every_width_of_other_types[u8-32]"
    "$products::test_blocks_that_share_columns[layout0-False-2]"
    "$products::test_blocks_that_share_columns[layout0-True-2]"
    "$products::test_sums_in_parts_of_k[layout0-2-False]"
    "$products::test_sums_in_parts_of_k[layout0-8-True]"
    "$products::test_sums_in_parts_of_other_types[(f32, f32)-True]"
    "$products::test_stacks_of_matrices[None-layout0]"
    "$products::test_stacks_of_matrices[0-layout1]"
    "$products::test_stacks_in_parts_of_k[2-False]"
    "$products::test_three_products_have_the_precision_of_f32"
    "$products::test_scales_at_the_end"
    "$attention::test_attention_by_warpgroups_beside_float64[shape9-64-True]"
    "$attention::test_attention_by_warpgroups_beside_float64[shape10-128-False]"
    "$attention::test_a_nan_beyond_a_heads_last_key_is_another_heads"
    tests/kernels/test_attention.py::test_packed_sequences
    tests/kernels/test_attention.py::test_lengths_hide_the_padding
    "$tensor/test_warpgroup_types.py::test_other_sums_are_within_the_bound"
    "$tensor/test_barriers.py::test_the_warpgroup_product_is_within_rounding_of_float64"
    "$tensor/test_barriers.py::test_a_left_operand_in_registers[dtype0-8-64-True]"
    "$tensor/test_barriers.py::test_a_ring_of_buffers_passes_all_numbers_in_order"
    "$tensor/test_tile_copies.py::test_a_tile_is_copied_from_and_to_any_place"
    "$tensor/test_tile_copies.py::test_tiles_that_threads_have_written_are_stored"
    "$tensor/test_clusters.py::test_one_copy_fills_the_tiles_of_both_blocks"
    "$tensor/test_clusters.py::test_a_block_reads_the_other_blocks_shared_memory"
    "$tensor/test_clusters.py::test_arrivals_at_another_blocks_barrier_pass_a_number_around"
    "$tensor/test_copies.py::test_groups_are_waited_for_in_order"
    "$tensor/test_mma.py::test_random_products_are_within_the_stated_bound"
)
run() { # tool: runs the tests under it, says how it ended
    local start=$SECONDS left_out=()
    # Its threads write and read by themselves, and one lane arrives for its warp after warp.sync(): racecheck follows
    # no such chain, and reports the reads of the other lanes.
    [ "$1" = racecheck ] && left_out=(--deselect "$tensor/test_barriers.py::test_a_ring_of_buffers_passes_all_numbers_in_order")
    timeout "${LIMIT:-140}" compute-sanitizer --tool "$1" --report-api-errors no --error-exitcode 9 \
        "$python" -m pytest --device cuda -q -p no:cacheprovider "${tests[@]}" "${left_out[@]}" >"$out/$1.log" 2>&1
    echo "== $1: exit $? in $((SECONDS - start)) s; $(grep -E '^[0-9]+ (passed|failed)' "$out/$1.log" | tail -1)"
}
mkdir -p "$out"
[ $# -gt 0 ] || set -- racecheck memcheck synccheck
for tool in "$@"; do
    run "$tool" &
done
wait
