//! By which tests mutants of the stream were caught last. They are tried first: what is caught as
//! before takes seconds, and not minutes. A mutant that is not here meets all tests.
//!
//! Each line is a mutant, and words of the names of tests.

pub(super) const CATCHERS: &[(&str, &str)] = &[
    (
        "acks of a replica are not kept",
        "explore::a_calm_job_is_a_circle_of_states",
    ),
    (
        "a new life begins no epoch",
        "lives::a_slave_that_lost_its_memory_takes_no_number_of_its_former_life::a_few_seeds",
    ),
    (
        "a promise refuses nothing",
        "explore::a_delta_that_comes_twice_counts_once",
    ),
    (
        "nothing is put back",
        "apart::a_number_that_fits_by_chance_acknowledges_nothing",
    ),
    (
        "a replica is given with what is under way",
        "explore::a_memory_that_is_lost",
    ),
    (
        "numbers start anew after a restore",
        "joins::what_a_former_life_asked_for_is_not_joined",
    ),
    (
        "a survey does not wait for all",
        "moves::ranges_that_move_miss_few_turns",
    ),
    (
        "the first offer wins",
        "joins::what_a_master_gives_has_what_it_acknowledges",
    ),
    (
        "an ack one too early",
        "explore::a_delta_that_comes_twice_counts_once",
    ),
    (
        "any number is applied",
        "explore::a_delta_that_comes_twice_counts_once",
    ),
    (
        "a delta of any epoch is applied",
        "joins::what_a_former_life_asked_for_is_not_joined",
    ),
    (
        "versions are compared as numbers",
        "explore::a_delta_that_comes_twice_counts_once",
    ),
    (
        "who answers promises nothing",
        "give_back::a_range_goes_back_soon_over_a_thin_link",
    ),
    (
        "a slave joins before its life is known",
        "joins::what_a_former_life_asked_for_is_not_joined",
    ),
    (
        "a master that is replaced keeps no snapshot",
        "settle::who_is_equal_stays_so_while_others_leave",
    ),
    (
        "a replaced master joins as if nothing had forked",
        "a_node_that_stood_still_loses_and_doubles_nothing",
    ),
    (
        "a range that is taken over is no further on than one that is given",
        "takeover::what_one_side_gave_on_in_order_comes_together",
    ),
    (
        "who gave a chunk brings it too, if another part of the network began it",
        "begun::tests::",
    ),
    (
        "no base is sought further back",
        "storm::thinnest_links_lose_and_double_nothing::a_few_seeds",
    ),
    (
        "no base is kept",
        "a_node_that_stood_still_loses_and_doubles_nothing",
    ),
    (
        "what is contested is not left out",
        "a_node_that_stood_still_loses_and_doubles_nothing",
    ),
    (
        "slaves keep nothing that is contested",
        "a_node_that_stood_still_loses_and_doubles_nothing",
    ),
    (
        "slaves keep what is contested for the last master alone",
        "early::thin_links_lose_and_double_nothing::a_few_seeds",
    ),
    (
        "what was asked for counts as taken over",
        "takeover::what_a_node_did_apart_is_counted_where_none_has_it",
    ),
    (
        "a slave goes over without asking",
        "apart::a_number_that_fits_by_chance_acknowledges_nothing",
    ),
    (
        "what went apart is not put back",
        "apart::a_number_that_fits_by_chance_acknowledges_nothing",
    ),
    (
        "a node alone takes ranges",
        "takeover::one_deaf_ear_moves_no_range",
    ),
    (
        "one deaf node takes a range",
        "takeover::one_deaf_ear_moves_no_range",
    ),
    (
        "no range moves between living nodes",
        "early::who_joins_and_leaves_loses_nothing::a_few_seeds",
    ),
    (
        "a range moves to even out one that is not two ahead",
        "early::who_joins_and_leaves_loses_nothing::a_few_seeds",
    ),
    (
        "who leaves waits for nothing that is under way",
        "leave::who_gets_nearer_stays",
    ),
    (
        "who leaves keeps its ranges",
        "leave::who_streams_only_what_it_got_gives_it_away::a_few_seeds",
    ),
    (
        "who leaves does not wait for what it owes",
        "partial::who_leaves_settles_what_it_owes",
    ),
    (
        "a node is not told of its own former lives",
        "iterations::what_a_new_life_came_after_is_not_added_to_the_former_one",
    ),
    (
        "former lives of another life are believed",
        "iterations::what_a_new_life_came_after_is_not_added_to_the_former_one",
    ),
    (
        "the highest number that hellos tell is believed",
        "iterations::tests::what_all_hellos_tell_for_long_enough_counts",
    ),
    (
        "what the dead made is not told",
        "iterations::who_is_dead_for_good_still_counts::a_few_seeds",
    ),
    (
        "a delta that is sent again may be coarser",
        "narrow::deltas_that_change_their_precision_lose_and_double_nothing::a_few_seeds",
    ),
    (
        "who leaves answers on",
        "early::thin_links_lose_and_double_nothing::a_few_seeds",
    ),
    (
        "who is gone is waited for",
        "leave::who_streams_only_what_it_got_gives_it_away::a_few_seeds",
    ),
    (
        "who joins begins a range that is new",
        "explore::a_hello_to_a_former_life_begins_no_range",
    ),
    (
        "of two epochs the earlier wins",
        "explore::a_hello_to_a_former_life_begins_no_range",
    ),
    (
        "what a silent slave has is not owed",
        "owed::a_delta_of_a_dead_slave_counts_once::a_few_seeds",
    ),
    (
        "a delta that was added in part is not owed",
        "partial::it_counts_once_where_the_range_is_given_away",
    ),
    (
        "a delta that was added in part is owed whole",
        "partial::it_counts_once_where_the_range_is_given_away",
    ),
    (
        "what forks need is not found after a kill",
        "apart::a_number_that_fits_by_chance_acknowledges_nothing",
    ),
    (
        "a reign is told by its owner alone",
        "epochs::tests::epochs_are_ordered_on_a_circle_without_zero",
    ),
    (
        "pieces wait for what is outstanding",
        "narrow::a_delta_that_moves_nothing_keeps_no_piece_away",
    ),
    (
        "what is outstanding is no part of what is held",
        "checks::a_bit_that_flips_is_named_and_set_right::a_few_seeds",
    ),
    (
        "what differs stays as it is",
        "checks::a_bit_that_flips_is_named_and_set_right::a_few_seeds",
    ),
    (
        "weights are left where what was taken is wrong",
        "checks::a_forged_check_lasts_no_longer_than_a_forged_position",
    ),
    (
        "a master gives older weights than it acknowledges",
        "joins::what_a_master_gives_has_what_it_acknowledges",
    ),
    (
        "what a former life asked for is joined",
        "joins::what_a_former_life_asked_for_is_not_joined",
    ),
    (
        "a chunk is answered by each position that calls for it",
        "early::a_position_calls_for_a_chunk_of_the_next_range",
    ),
    (
        "an early answer goes to another reign",
        "early::a_position_calls_for_a_chunk_of_the_next_range",
    ),
    (
        "what is outstanding is taken once more by an early answer",
        "early::every_delta_counts_by_its_portion_once::a_few_seeds",
    ),
    (
        "what was answered at once is not answered where a lead begins",
        "early::a_position_calls_for_a_chunk_of_the_next_range",
    ),
    (
        "a chunk moves on twice where its position had no room",
        "momentum::tests::what_came_goes_on_once_in_each_turn_until_solvers_stop",
    ),
    (
        "what is not finite goes on",
        "momentum::tests::what_is_not_finite_is_forgotten",
    ),
    (
        "all are equal before what they made is known",
        "settle::who_is_equal_stays_so_while_others_leave",
    ),
    (
        "what was under way goes on by turns and not by steps",
        "momentum::tests::it_goes_on_as_far_as_steps_are_made",
    ),
    (
        "masters go on when their solvers have finished",
        "momentum::tests::it_goes_on_as_far_as_steps_are_made",
    ),
    (
        "rounded positions count as the bits that all hold",
        "settle::who_says_equal_is_equal",
    ),
    (
        "what all hold is rounded anew when a node leaves",
        "settle::who_is_equal_stays_so_while_others_leave",
    ),
    (
        "who asked for a chunk has it",
        "storm::thinnest_links_lose_and_double_nothing::a_few_seeds",
    ),
    (
        "nothing of another reign is nothing at all",
        "header::tests::nothing_is_so_of_one_kind_and_one_node",
    ),
    (
        "who is forked takes a range again at once",
        "storm::thinnest_links_lose_and_double_nothing::a_few_seeds",
    ),
    (
        "bases are forgotten while others are silent",
        "storm::thinnest_links_lose_and_double_nothing::a_few_seeds",
    ),
    (
        "own work that both masters took counts twice",
        "takeover::what_slaves_sent_to_both_sides_counts_once::a_few_seeds",
    ),
    (
        "work of a slave that both masters took counts twice",
        "takeover::what_slaves_sent_to_both_sides_counts_once::a_few_seeds",
    ),
    (
        "a base that a third node needs is not kept",
        "storm::thinnest_links_lose_and_double_nothing::a_few_seeds",
    ),
    (
        "a master that a third node hears counts as silent",
        "takeover::a_master_that_only_a_third_node_hears_keeps_its_range",
    ),
    (
        "a base of an earlier reign is given",
        "forks::tests::the_last_base_before",
    ),
    (
        "a base of a later reign is given",
        "forks::tests::the_last_base_before",
    ),
    (
        "a streamer that starts forgets bases",
        "forks::tests::a_streamer_that_starts",
    ),
    (
        "a streamer that stood still forgets bases",
        "forks::tests::a_streamer_that_stood_still",
    ),
    (
        "a contested delta of a reign long before is given",
        "forks::tests::a_delta_of_a_reign",
    ),
    (
        "what was put back is forgotten when a third master comes",
        "forks::tests::what_was_put_back",
    ),
    (
        "the line of masters is not followed",
        "returns::the_line_of_masters",
    ),
    (
        "who leaves waits only for nodes that it has heard",
        "returns::who_leaves_waits_for_a_master",
    ),
    (
        "who leaves goes as soon as no node is silent",
        "returns::who_leaves_waits_for_one",
    ),
    (
        "who has just started knows only whom it heard",
        "returns::who_has_just_started",
    ),
    (
        "a base of the reign before counts at once",
        "rejoin::tests::",
    ),
    (
        "a base of a line that has ended is taken",
        "rejoin::tests::",
    ),
    (
        "who was asked trusts a master that is not the next",
        "unsure::tests::",
    ),
    (
        "a slave does not follow the line of masters",
        "unsure::tests::",
    ),
    (
        "what went to the master before is not owed",
        "owed::tests::",
    ),
    (
        "a master that goes on keeps nothing of what it has taken",
        "returns::a_master_that_goes_on",
    ),
    (
        "no node knows that a master went on",
        "returns::a_master_that_goes_on",
    ),
    (
        "a master that went on tells nothing",
        "returns::a_master_that_goes_on",
    ),
    (
        "who leaves does not wait for a master that needs a contested delta",
        "returns::a_master_that_goes_on",
    ),
    (
        "what a narrow position leaves out counts by the portion",
        "what_a_narrow_position_leaves_out",
    ),
    (
        "what a master streamed last has no number of its own",
        "returns::what_was_given",
    ),
    (
        "no position tells what its master began from",
        "returns::what_was_given",
    ),
    (
        "no later position has what a node streamed last",
        "returns::what_the_next_master_began_from",
    ),
    (
        "only the last node that asked for a chunk may have it",
        "begun::tests::",
    ),
];
