"""What users of the neighbouring tools run into and ask for, as a list that is checked.

Each row of USERS.md (kept with the data, not in this repository) in our own words, with
the tests that show it. A test that is renamed or deleted fails here, and so does a row
that is added there.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

# --- the table of wants, in its order ---------------------------------------------

WANTS = {
    "1 a new user from a few ratings, without refitting": """
        posterior/test_fold_in.py::test_simulated_rows_rank_evenly_among_their_draws
        posterior/test_fold_in.py::test_new_users_are_predicted_as_by_a_fit_with_them
        posterior/test_fold_in.py::test_the_fit_stays_as_it_is_and_the_new_one_is_whole
        """,
    "2 unknown or mistyped ids are told": """
        data/test_ids.py::test_an_unknown_id_names_its_likely_type_mistake
        data/test_ids.py::test_only_the_first_few_unknown_ids_are_named
        posterior/test_posterior.py::test_unknown_ids_raise_unless_something_else_is_asked_for
        test_cli.py::test_predict_refuses_unknown_ids_unless_told
        """,
    "3 draws do not fill the device; sizes are told before": """
        inference/test_memory.py::test_the_estimate_of_a_draw_is_its_size
        inference/test_memory.py::test_over_the_limit_a_thinning_is_named_that_then_fits
        inference/test_memory.py::test_a_fit_beyond_the_memory_of_its_device_is_refused_in_one_sentence
        inference/test_memory.py::test_kept_draws_are_stored_once
        """,
    "4 indexed sums stay fast and exact, whoever adds": """
        numerics/test_reductions.py::test_sums_of_whole_numbers_are_exact
        numerics/test_reductions.py::test_sums_by_bin
        test_bench_reductions.py::*
        """,
    "5 what is bit-equal and what is recorded": """
        inference/test_run.py::test_the_seed_decides_and_numpy_has_no_part_in_it
        inference/test_run.py::test_another_process_draws_the_same_and_prints_nothing
        posterior/test_posterior.py::test_how_it_was_run_is_kept
        """,
    "6 exact checkpoint and resume": """
        inference/test_checkpoint.py::test_a_fit_goes_on_as_if_it_had_not_been_broken_off
        inference/test_checkpoint.py::test_more_samples_go_on_where_fewer_ended_and_nothing_compiles
        inference/test_checkpoint.py::test_processes_that_are_killed_lose_nothing
        """,
    "7 mean and spread; top-N with uncertainty": """
        posterior/test_spread.py::test_spreads_are_those_of_the_mixture
        posterior/test_recommend.py::test_blocks_give_the_best_of_all_pairs
        posterior/test_recommend.py::test_the_level_moves_the_bound
        """,
    "8 predictions are averaged over draws": """
        posterior/test_posterior.py::test_predict_is_the_mean_over_draws_for_every_pair
        inference/test_run.py::test_running_errors_are_those_of_the_mean_of_the_kept_draws
        """,
    "9 a saved model that needs no training data": """
        posterior/test_storage.py::test_everything_comes_back
        posterior/test_storage.py::test_no_array_needs_pickle
        posterior/test_storage.py::test_a_file_of_every_format_version_still_predicts
        posterior/test_recommend.py::test_a_saved_posterior_needs_no_training_data
        """,
    "10 top-N without a users x items matrix": """
        posterior/test_recommend.py::test_no_more_pairs_than_a_block_are_held
        posterior/test_recommend.py::test_more_than_there_is_gives_all
        posterior/test_recommend.py::test_equal_items_come_in_the_order_of_the_index
        """,
    "11 frames with any ids in, the same ids out": """
        data/test_ratings.py::test_a_frame_comes_back_as_it_was_and_stays_as_it_is
        data/test_ids.py::test_dtype_of_the_caller_comes_back
        data/test_fuzz.py::test_any_frame_comes_back_as_it_was
        data/test_polars.py::test_a_frame_is_read_column_by_column
        posterior/test_recommend.py::test_ids_come_back_as_they_are
        """,
    "12 how many topics": """
        posterior/test_posterior.py::test_topics_are_counted_in_kept_draws
        test_api.py::test_a_truncation_that_is_nearly_full_is_told
        """,
    "13 NaN found early, by name": """
        inference/test_run.py::test_a_draw_that_is_not_finite_stops_the_run_by_name
        inference/test_run.py::test_every_array_of_the_state_is_watched
        """,
    "14 the device is told": """
        inference/test_devices.py::test_the_description_names_platform_and_kind
        inference/test_devices.py::test_a_gpu_that_is_not_there_is_refused_aloud
        test_manners.py::test_the_report_tells_what_jax_runs_on
        """,
    "15 importing takes no memory of a GPU": """
        test_house.py::test_import_starts_nothing
        test_house.py::test_using_the_names_starts_no_backend
        """,
    "16 the crossover is measured, compile time apart": """
        test_bench_speed.py::test_the_crossover_is_the_size_from_which_on_the_gpu_wins
        test_bench_speed.py::test_the_first_sweep_is_timed
        """,
    "17 ArviZ of today": """
        posterior/test_arviz.py::test_dimensions_are_chain_and_draw
        posterior/test_arviz.py::test_a_netcdf_file_gives_it_back
        """,
    "18 diagnostics of label-free scalars, log likelihood on request": """
        posterior/test_arviz.py::test_every_scalar_of_the_trace_has_a_place
        posterior/test_arviz.py::test_log_likelihoods_are_the_densities_of_each_draw
        """,
    "19 labels switch": """
        posterior/test_store.py::test_coassignment_counts_the_draws_that_agree
        posterior/test_explain.py::test_topics_are_of_the_draw_nearest_the_mean
        posterior/test_recommend.py::test_labels_and_rotations_do_not_matter
        """,
    "20 several chains on one device": """
        inference/test_run.py::test_the_first_of_two_chains_is_the_single_chain
        inference/test_run.py::test_chains_at_once_are_chains_one_after_another
        inference/test_memory.py::test_what_grows_with_the_chains_and_what_does_not
        """,
    "21 one bar, in the outer loop": """
        inference/test_run.py::test_nothing_is_printed_and_the_bar_goes_to_standard_error
        inference/test_run.py::test_a_callback_gets_sweep_seconds_and_metrics
        """,
    "22 an interrupt keeps what was sampled": """
        inference/test_run.py::test_an_interrupt_keeps_what_was_sampled
        test_cli.py::test_an_interrupted_process_keeps_what_it_sampled
        """,
    "23 no compilation where sizes change a little": """
        inference/test_run.py::test_ratings_of_nearly_one_number_share_a_compilation
        data/test_layout.py::test_data_sets_of_nearly_equal_size_share_their_shapes
        """,
    "24 clipping on request, data never changed": """
        posterior/test_posterior.py::test_clipping
        posterior/test_posterior.py::test_a_clip_without_meaning_is_refused
        test_api.py::test_a_scale_from_0_to_1_and_the_frame_is_left_alone
        """,
    "25 repeated pairs": """
        data/test_ratings.py::test_repeated_pairs_are_refused_with_their_rows
        data/test_ratings.py::test_repeated_pairs_are_merged_as_asked_and_never_summed
        """,
    "26 a zero is a rating": """
        data/test_sparse.py::test_a_stored_zero_is_an_observation
        data/test_sparse.py::test_in_a_full_matrix_nan_is_missing_and_0_is_not
        """,
    "27 which way round": """
        data/test_sparse.py::test_the_way_round_is_told_by_the_ids
        """,
    "28 splits that do not leak": """
        data/test_splits.py::test_two_sides_make_up_the_whole
        data/test_splits.py::test_users_of_1_2_and_20_ratings
        data/test_splits.py::test_what_is_tested_is_later_than_all_that_trains
        """,
    "29 a number given is never changed": """
        test_api.py::test_a_number_given_is_never_changed
        test_manners.py::test_a_fit_changes_no_model_and_no_number_given
        """,
    "30 global settings stay": """
        test_house.py::test_global_configuration_is_left_alone
        inference/test_run.py::test_the_configuration_of_jax_is_left_alone
        """,
}

# --- the table of public faults, turned into inputs -------------------------------

FAULTS = {
    "12 ratings from 0 to 1 with a zero": """
        test_api.py::test_a_scale_from_0_to_1_and_the_frame_is_left_alone
        """,
    "ids with gaps": """
        data/test_ratings.py::test_ids_with_gaps_make_as_many_rows_as_there_are_ids
        test_api.py::test_ids_with_gaps_make_no_rows_and_come_back
        """,
    "one id of six is missing": """
        data/test_ratings.py::test_a_missing_id_is_refused_with_row_and_column
        data/test_ids.py::test_missing_ids_are_refused_with_row_and_column
        data/test_fuzz.py::test_a_hole_in_any_column_is_refused_with_its_row
        """,
    "4 and 5 at one place": """
        data/test_sparse.py::test_what_is_stored_twice_is_never_summed
        data/test_ratings.py::test_repeated_pairs_are_merged_as_asked_and_never_summed
        """,
    "a stored 0": """
        data/test_sparse.py::test_a_stored_zero_is_an_observation
        """,
    "a matrix of items by users": """
        data/test_sparse.py::test_the_way_round_is_told_by_the_ids
        """,
    "all ratings equal": """
        test_api.py::test_all_ratings_equal
        """,
    "three ratings, hardly any concentration": """
        test_api.py::test_three_ratings_and_hardly_any_concentration
        gibbs/test_row_weights.py::test_three_ratings_and_hardly_any_concentration_on_a_hundred_topics
        numerics/test_random.py::test_log_dirichlet_is_normalised_and_never_exactly_zero
        """,
    "concentrations that are given": """
        test_api.py::test_a_number_given_is_never_changed
        """,
    "3,428 ratings at one table": """
        gibbs/test_crf.py::test_thousands_of_customers_at_one_table
        """,
    "2^24 + 8 ratings of one topic": """
        numerics/test_reductions.py::test_a_count_does_not_stop_at_two_to_the_24
        """,
    "run 20, or 10 and 10": """
        inference/test_checkpoint.py::test_a_fit_goes_on_as_if_it_had_not_been_broken_off
        inference/test_checkpoint.py::test_more_samples_go_on_where_fewer_ended_and_nothing_compiles
        """,
    "a checkpoint cut short, and a file left over": """
        inference/test_checkpoint.py::test_the_one_before_serves_where_the_newest_is_damaged
        inference/test_checkpoint.py::test_where_each_is_damaged_that_is_said
        """,
    "two processes; 1 and 4 chains": """
        inference/test_run.py::test_another_process_draws_the_same_and_prints_nothing
        inference/test_run.py::test_the_first_of_two_chains_is_the_single_chain
        inference/test_run.py::test_the_seed_decides_and_numpy_has_no_part_in_it
        """,
    "users with 1, 2 and 20 ratings": """
        data/test_splits.py::test_users_of_1_2_and_20_ratings
        test_api.py::test_a_user_with_one_rating_is_known
        """,
    "recommend for 200,000 users": """
        posterior/test_recommend.py::test_lists_of_all_users_take_little_memory
        """,
    "1 and 4 chains to ArviZ": """
        posterior/test_arviz.py::test_dimensions_are_chain_and_draw
        posterior/test_arviz.py::test_arviz_runs_on_it_and_warns_of_nothing_constant
        """,
    "entities of DBLP, and its DTD absent": """
        data/test_dblp.py::test_names_are_right_without_the_dtd
        data/test_dblp.py::test_a_dtd_elsewhere_is_not_read
        data/test_dblp.py::test_an_unknown_entity_is_an_error_with_its_line
        """,
    "titles in latin-1 and UTF-8": """
        data/test_titles.py::test_every_generation_is_read_by_its_name
        data/test_titles.py::test_letters_survive
        """,
    "headers, ends of lines, half stars": """
        data/test_movielens.py::test_every_form_of_a_table_gives_the_same_rows
        data/test_fuzz.py::test_a_file_of_ratings_is_read_to_the_last_digit
        """,
    "ratings of every dtype": """
        data/test_ratings.py::test_numbers_are_converted_once_to_float
        data/test_ratings.py::test_integers_of_any_kind_are_ratings
        data/test_ratings.py::test_what_is_no_finite_number_is_refused_with_row_and_column
        """,
    "1000, 1010 and 1020 ratings": """
        inference/test_run.py::test_ratings_of_nearly_one_number_share_a_compilation
        """,
    "the import in a fresh process": """
        test_house.py::test_import_starts_nothing
        test_house.py::test_using_the_names_starts_no_backend
        """,
}

# --- the promises -----------------------------------------------------------------

PROMISES = {
    "ids are keys, compared exactly": """
        data/test_ids.py::test_types_are_never_merged
        data/test_ids.py::test_ids_that_lost_precision_are_refused_with_their_row
        data/test_ids.py::test_an_unknown_id_names_its_likely_type_mistake
        data/test_fuzz.py::test_any_values_are_taken_as_they_are_or_refused
        data/test_fuzz.py::test_a_look_up_finds_what_is_the_same_and_nothing_else
        """,
    "predict is a mean over draws, and so is the error reported": """
        posterior/test_posterior.py::test_predict_is_the_mean_over_draws_for_every_pair
        posterior/test_posterior.py::test_evaluate
        test_cli.py::test_fit_writes_predictions_metrics_and_trace
        """,
    "topics are those occupied": """
        posterior/test_posterior.py::test_topics_are_counted_in_kept_draws
        gibbs/test_topic_room.py::test_a_sweep_does_the_same_in_more_room
        test_api.py::test_a_truncation_that_is_nearly_full_is_told
        """,
    "what is not finite is refused, or stops the run": """
        data/test_ratings.py::test_what_is_no_finite_number_is_refused_with_row_and_column
        inference/test_run.py::test_a_draw_that_is_not_finite_stops_the_run_by_name
        inference/test_checkpoint.py::test_a_draw_that_is_not_finite_leaves_the_last_checkpoint
        """,
    "conditionals are exact on both sides": """
        gibbs/test_factors.py::test_conditional_is_exact
        gibbs/test_biases.py::test_conditional_is_exact
        gibbs/test_topics.py::test_conditional_is_exact_over_every_topic
        gibbs/test_row_weights.py::test_conditional_is_exact
        gibbs/test_global_weights.py::test_conditional_is_exact
        """,
    "a saved model stands for itself, other versions are refused": """
        posterior/test_storage.py::test_everything_comes_back
        posterior/test_storage.py::test_another_version_is_refused_by_both_numbers
        """,
    "pairs of DBLP": """
        data/test_dblp.py::test_pairs_are_unordered_and_counted
        data/test_dblp.py::test_publications_give_pairs
        data/test_dblp.py::test_other_records_give_none
        data/test_dblp.py::test_editors_give_no_pairs
        data/test_dblp.py::test_suffix_numbers_are_part_of_the_name
        data/test_dblp.py::test_papers_over_max_authors_are_skipped_and_counted
        data/test_dblp.py::test_200_megabytes_of_few_authors_take_little_memory
        """,
}

# --- the formats and their traps --------------------------------------------------

FORMATS = {
    "files of MovieLens": """
        data/test_movielens.py::test_every_form_of_a_table_gives_the_same_rows
        data/test_movielens.py::test_ids_of_text_stand_as_in_the_file
        data/test_titles.py::test_films_of_one_title_stay_apart
        data/test_download.py::test_a_set_that_changes_is_compared_with_its_own_checksums
        """,
    "columns of pandas": """
        data/test_ids.py::test_ids_come_back_and_are_found_again
        data/test_ids.py::test_categories_that_no_row_uses_are_no_ids
        data/test_fuzz.py::test_any_frame_comes_back_as_it_was
        """,
    "matrices of scipy, frames of polars": """
        data/test_sparse.py::test_what_is_stored_twice_is_never_summed
        data/test_polars.py::test_a_frame_is_read_column_by_column
        """,
    "DBLP as a stream": """
        data/test_dblp.py::test_informal_papers_are_left_out_unless_asked_for
        data/test_dblp.py::test_only_elements_right_below_a_record_count
        data/test_dblp.py::test_hostile_entities_are_refused
        data/test_dblp.py::test_200_megabytes_of_few_authors_take_little_memory
        """,
}

LISTS = {"wants": WANTS, "faults": FAULTS, "promises": PROMISES, "formats": FORMATS}
ROWS = [(name, row) for name, rows in LISTS.items() for row in rows]


@cache
def names_in(file):
    """Name the tests in a file; None where there is no such file."""
    path = TESTS / file
    if not path.is_file():
        return None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name for node in functions if node.name.startswith("test_")}


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[row for _, row in ROWS])
def test_every_row_has_its_tests(name, row):
    named = LISTS[name][row].split()
    assert named
    for test in named:
        file, function = test.split("::")
        found = names_in(file)
        assert found is not None, f"there is no file {file}"
        assert found if function == "*" else function in found, f"no test {test}"


def rows_of(text):
    """Count the rows of both tables and the points of both lists of USERS.md."""
    parts = re.split("^## ", text, flags=re.MULTILINE)
    assert len(parts) == 4, "USERS.md has other parts than it had"
    tables = [re.findall(r"^\|.*\|$", part, re.MULTILINE)[2:] for part in parts[:2]]
    points = [re.findall(r"^- ", part, re.MULTILINE) for part in parts[2:]]
    return [len(part) for part in (*tables, *points)]


def test_no_row_is_missing(data_dir):
    path = data_dir.parent / "USERS.md"
    if not path.is_file():
        pytest.skip("USERS.md is not beside the folder of data")
    assert rows_of(path.read_text(encoding="utf-8")) == [*map(len, LISTS.values())]


def test_the_readers_above_find_what_they_look_for():
    assert "test_the_readers_above_find_what_they_look_for" in names_in("test_users.py")
    assert names_in("no such file.py") is None
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n"
    text = f"# T\n{table}\n## U\n{table}| 3 | 4 |\n\n## V\n- a\n  b\n- c\n## W\n- d\n"
    assert rows_of(text) == [1, 2, 2, 1]
