//! The cases that every backend takes: one rule each, and the name of a case is the rule.
//!
//! A backend's `tests/conformance.rs` is one line, [`conformance!`](crate::conformance!), and gets a test for
//! each case. Cases are written against [`Backend`](geartrain_core::Backend) alone, bring their own moments,
//! and never sleep; those about waiting move the clock. A case that a backend cannot pass shows a rule that
//! it breaks: there is nothing to skip.
//!
//! Which case shows which rule of the Qless specification, and of what goes beyond it, is in the tables of
//! `rules.md`. A rule may take several cases, one to a line. A test below keeps the tables and the cases from
//! drifting apart.
//!
#![doc = include_str!("rules.md")]

mod builders;
mod system;
mod walk;

pub mod attempts;
pub mod backoff_and_deadlines;
pub mod bad_input;
pub mod batches;
pub mod cancel;
pub mod canceled;
pub mod capabilities;
pub mod config;
pub mod crashes;
pub mod cursors;
pub mod dependency_policies;
pub mod depends;
pub mod events;
pub mod figures;
pub mod finish;
pub mod flush;
pub mod functions;
pub mod history;
pub mod klasses;
pub mod limits;
pub mod locks;
pub mod numbers;
pub mod order;
pub mod parked_pops;
pub mod periodic;
pub mod put;
pub mod reading;
pub mod ready;
pub mod recur;
pub mod relock;
pub mod results;
pub mod select;
pub mod set_aside;
pub mod several_queues;
pub mod stats;
pub mod tags_and_tracking;
pub mod tokens;
pub mod trace;
pub mod unique;
pub mod why;

pub use system::{Checked, Order, Start, System, Unexpected, check};

use system::Case;

/// The names of all cases.
pub fn case_names() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|(name, _)| *name)
}

/// What every theme is written with.
mod prelude {
    pub(crate) use super::builders::*;
    pub(crate) use super::system::*;
    pub(crate) use geartrain_core::*;
}

macro_rules! cases {
    (($dollar:tt) $($theme:ident => { $($case:ident,)* })*) => {
        /// All cases, with their names. Their futures are boxed here, so that they are compiled once and not in the
        /// tests of each backend.
        const CASES: &[(&str, Case)] = &[$($((stringify!($case), |system| Box::pin($theme::$case(system))),)*)*];

        /// Makes a test of every case, each with a fresh backend, for a backend's `tests/conformance.rs`.
        ///
        /// It is given a function from a clock to a backend that goes by it:
        ///
        /// ```text
        /// geartrain_testkit::conformance!(|clock| Arc::new(StoreBackend::in_memory(clock).expect("…")));
        /// ```
        ///
        /// With `one_double:` before it, the backend is one that folds priority and moment into one double
        /// and lists equals by name, as Redis does, and the cases about order expect that.
        #[macro_export]
        macro_rules! conformance {
            (one_double: $dollar backend:expr) => {
                $crate::conformance!($crate::conformance::Order::OneDouble, $dollar backend);
            };
            ($dollar order:expr, $dollar backend:expr) => {
                const START: $crate::conformance::Start = $dollar backend;
                $($(
                    #[test]
                    fn $case() {
                        $crate::conformance::check(stringify!($case), $dollar order, START);
                    }
                )*)*
            };
            ($dollar backend:expr) => {
                $crate::conformance!($crate::conformance::Order::Exact, $dollar backend);
            };
        }
    };
}

// A case is added by writing its function in the file of its theme, and its name here and in `rules.md`.
cases! {
    ($)
    put => {
        a_new_job_waits_with_the_defaults,
        a_new_job_is_as_it_was_put,
        a_payload_is_kept_byte_for_byte,
        a_delayed_job_is_scheduled_until_it_is_due,
        a_negative_delay_counts_as_none,
        a_put_that_keeps_leaves_an_existing_job_alone,
        putting_again_replaces_klass_payload_and_queue,
        putting_again_keeps_priority_tags_and_retries_that_are_not_given,
        putting_again_replaces_priority_tags_and_retries_that_are_given,
        putting_again_gives_all_retries_back,
        putting_a_running_job_takes_it_from_its_worker,
        a_put_moves_a_job_from_any_state,
        putting_again_with_a_delay_schedules_the_job,
        putting_a_failed_job_takes_it_out_of_its_group,
        putting_a_complete_job_runs_it_again,
        requeue_puts_an_existing_job_again,
        requeue_refuses_an_unknown_job,
        a_job_may_have_the_id_of_a_recurring_job,
    }
    order => {
        a_higher_priority_goes_first,
        among_equals_the_earlier_moment_goes_first,
        among_equals_of_one_moment_the_first_to_arrive_goes_first,
        priorities_never_mix_with_time,
        huge_priorities_do_not_blur_the_moments,
        a_due_job_joins_behind_those_that_wait,
        due_jobs_moved_together_keep_the_order_of_their_due_times,
        jobs_due_at_one_moment_keep_the_order_of_their_puts,
        a_pop_moves_no_more_due_jobs_than_it_wants,
        setting_the_priority_puts_a_waiting_job_ahead_of_its_equals,
        a_changed_priority_changes_the_order,
        the_priority_of_a_job_elsewhere_counts_once_it_waits,
        timed_out_jobs_go_before_all_others,
        setting_the_priority_of_a_timed_out_job_makes_it_ordinary,
        a_job_that_returns_joins_at_that_moment,
        dependents_released_together_go_in_the_order_of_their_ids,
        unfailed_jobs_come_back_the_oldest_failure_first,
        a_job_put_again_goes_to_the_back,
    }
    locks => {
        a_pop_hands_out_a_job_with_a_lock,
        a_pop_of_whole_jobs_shows_them_as_they_are_then,
        a_job_goes_to_one_worker_only,
        a_pop_of_no_jobs_registers_its_worker,
        a_heartbeat_pushes_the_deadline_back,
        a_heartbeat_may_bring_a_new_payload,
        a_heartbeat_renews_an_expired_lock,
        an_expired_lock_goes_to_the_next_worker_after_a_grace,
        a_lock_expires_at_its_very_deadline,
        the_grace_begins_with_the_warning,
        the_warning_is_counted_and_the_take_over_costs_a_retry,
        only_a_pop_of_its_queue_notices_an_expired_lock,
        a_job_in_grace_runs_but_is_in_no_workers_list,
        a_warned_holder_may_still_finish,
        an_expired_lock_without_retries_fails_the_job,
        a_job_is_tried_once_more_often_than_its_retries,
        a_warning_sticks_through_a_heartbeat,
        a_warning_sticks_until_a_take_over_or_a_retry,
        a_take_over_or_a_retry_uses_the_warning_up,
        without_grace_an_expired_lock_is_taken_over_at_once,
        without_grace_an_expired_lock_without_retries_fails_at_once,
        a_pop_examines_no_more_expired_locks_than_it_wants,
        a_warning_does_not_use_up_a_place,
        a_take_over_uses_up_a_place,
        jobs_taken_over_come_first,
        a_negative_heartbeat_makes_locks_that_have_expired,
        a_queue_hands_out_no_more_than_its_concurrency,
        a_concurrency_is_rounded_down_and_nought_is_no_limit,
        a_full_queue_examines_no_locks,
        a_paused_queue_hands_out_nothing,
        a_paused_queue_takes_jobs_and_reports,
        a_pause_needs_no_jobs,
    }
    finish => {
        completing_a_job_ends_it,
        completing_may_bring_a_new_payload,
        completing_checks_the_queue_if_it_is_given,
        completing_checks_state_then_holder_then_queue,
        a_completed_job_may_go_on_to_another_queue,
        a_job_sent_on_with_a_delay_is_scheduled_there,
        a_job_sent_on_with_a_delay_is_called_scheduled_once_it_is_put_again,
        a_job_sent_on_may_wait_for_others_there,
        a_job_sent_on_to_wait_for_done_jobs_loses_its_delay,
        completing_clears_an_earlier_failure,
        complete_jobs_are_dropped_once_they_are_old,
        a_tick_drops_complete_jobs_that_are_old,
        only_the_latest_complete_jobs_are_kept,
        a_job_dropped_at_once_still_releases_its_dependents,
        failing_a_job_sets_it_aside,
        failing_may_bring_a_new_payload,
        unfailing_puts_the_oldest_failures_back_to_work,
        unfailing_gives_used_up_retries_back,
        a_retry_gives_the_job_back,
        a_retry_with_a_delay_schedules_the_job,
        a_retry_remembers_its_reason_if_it_is_given_whole,
        a_retry_beyond_the_last_fails_the_job,
        the_last_retry_fails_for_the_reason_that_it_gives,
        a_retry_into_another_queue_is_refused,
        a_timeout_takes_a_running_job_away,
        a_timed_out_job_stays_in_its_holders_list_until_it_moves,
        a_timeout_is_all_or_nothing,
        a_timeout_that_names_a_job_twice_is_refused,
    }
    depends => {
        a_job_waits_for_its_dependencies,
        the_last_completion_releases_a_job,
        a_chain_is_released_one_job_at_a_time,
        unknown_and_complete_dependencies_count_as_done,
        a_delay_is_kept_when_the_dependencies_are_done,
        a_job_that_advances_releases_no_dependents,
        only_a_completion_releases_a_job,
        putting_again_without_dependencies_keeps_a_job_blocked,
        putting_again_with_dependencies_replaces_them,
        putting_again_can_block_a_job,
        a_blocked_job_keeps_its_due_time_until_it_is_released,
        a_due_time_set_aside_outlives_a_put_without_a_delay,
        a_due_time_set_aside_is_used_once,
        freeing_a_job_ignores_its_due_time,
        a_blocked_job_can_wait_for_more,
        a_blocked_job_can_wait_for_less,
        a_blocked_job_can_be_freed_of_all,
        a_job_that_is_not_blocked_cannot_gain_or_lose_dependencies,
        a_cycle_can_be_asked_for,
    }
    cancel => {
        cancelling_removes_a_job_from_wherever_it_stands,
        the_holder_of_a_cancelled_job_finds_it_gone,
        cancelling_passes_over_complete_jobs,
        cancelling_passes_over_unknown_jobs,
        cancelling_nothing_does_nothing,
        a_job_named_twice_is_cancelled_once,
        a_dependency_is_not_cancelled_without_its_dependents,
        a_dependency_is_cancelled_with_its_dependents,
        a_cancelled_dependent_is_forgotten_by_its_dependency,
        a_job_that_waits_for_itself_can_be_cancelled,
        cancelling_a_failed_job_takes_it_out_of_its_group_and_figures,
        a_cancelled_job_loses_its_tags,
        a_job_put_after_a_cancellation_begins_anew,
    }
    recur => {
        a_recurring_job_is_as_it_was_made,
        children_have_the_retries_of_a_put_unless_others_are_given,
        a_child_is_like_its_parent_and_knows_it,
        every_missed_interval_spawns_a_child,
        a_pop_spawns_no_more_children_than_it_wants,
        several_recurring_jobs_spawn_in_one_pop,
        children_are_ordered_by_their_nominal_times,
        a_backlog_limits_what_is_made_up_for,
        a_fractional_first_time_is_rounded_down_when_it_spawns,
        an_offset_may_lie_in_the_past,
        a_busy_recurring_job_makes_the_others_wait,
        only_pop_and_peek_spawn,
        a_paused_or_full_queue_spawns_nothing,
        recurring_again_replaces_all_but_the_count,
        removing_a_recurring_job_leaves_its_children,
        removing_an_unknown_recurring_job_is_nothing,
        a_child_never_replaces_a_job_that_exists,
        a_removed_recurring_job_forgets_its_count,
        a_recurring_job_can_be_changed_in_part,
        a_changed_interval_shifts_the_next_time,
        a_recurring_job_can_be_moved,
        a_recurring_job_can_be_tagged_for_its_children,
        a_tag_named_twice_is_added_twice_to_a_recurring_job,
        a_child_put_again_remembers_its_parent,
        a_fractional_interval_is_kept_to,
    }
    tags_and_tracking => {
        added_tags_come_behind_the_others_once,
        removed_tags_leave_the_others_in_order,
        a_put_keeps_repeated_tags,
        tagged_jobs_are_listed_in_the_order_of_tagging,
        tagged_jobs_come_in_pages,
        top_tags_are_listed_by_use,
        a_tag_added_again_counts_again,
        an_absent_tag_removed_counts_too,
        putting_again_does_not_count_tags_twice,
        tracking_answers_whether_it_changed_anything,
        tracked_jobs_are_listed_in_the_order_of_tracking,
        a_tracked_job_that_is_gone_is_listed_as_expired,
        a_job_put_under_a_tracked_id_is_tracked,
    }
    reading => {
        an_unknown_job_is_none,
        many_jobs_come_in_the_order_asked_for_without_unknown_ones,
        a_queues_length_leaves_out_blocked_and_recurring_jobs,
        the_counts_of_a_queue_tell_where_its_jobs_stand,
        an_unknown_queue_counts_nothing,
        counting_moves_every_due_job,
        queues_are_listed_as_they_were_first_seen,
        unfail_retry_and_pop_register_no_queue,
        a_forgotten_queue_keeps_its_jobs,
        a_lock_at_its_deadline_is_running_and_stalled,
        locked_jobs_are_listed_by_deadline,
        locks_of_one_deadline_are_listed_in_the_order_of_their_pops,
        listing_scheduled_jobs_moves_those_that_are_due,
        blocked_jobs_are_listed_in_the_order_of_their_puts,
        recurring_jobs_are_listed_by_their_next_times,
        complete_jobs_are_listed_from_the_latest,
        listing_waiting_jobs_moves_nothing,
        failures_are_counted_by_group,
        failed_jobs_are_listed_from_the_last_to_fail,
        workers_are_listed_from_the_last_seen,
        a_workers_jobs_are_listed_from_the_last_to_expire,
        a_workers_list_leaves_out_locks_of_a_hundred_days,
        a_worker_not_seen_for_long_is_forgotten,
        how_long_a_worker_is_remembered_is_an_option,
        a_worker_taken_off_the_list_keeps_its_jobs,
        a_peek_shows_expired_jobs_then_waiting_ones,
        a_peek_moves_due_jobs_but_hands_nothing_out,
    }
    stats => {
        a_quiet_day_has_empty_figures,
        waiting_and_running_times_are_measured,
        figures_have_a_mean_and_a_deviation,
        a_histogram_has_seconds_minutes_hours_and_days,
        times_out_of_range_count_but_are_not_shown,
        figures_of_huge_times_stay_finite,
        a_wait_includes_delay_and_dependencies,
        a_wait_begins_anew_with_each_put,
        a_wait_after_a_retry_is_counted_from_the_last_pop,
        a_wait_before_a_take_over_is_counted_from_the_last_pop,
        a_job_that_goes_on_is_measured_in_each_queue,
        a_childs_wait_begins_at_its_nominal_time,
        failures_and_failed_jobs_are_counted,
        a_failed_job_put_elsewhere_is_subtracted_there,
        an_unfailed_job_still_counts_as_failed,
        days_beyond_the_history_are_dropped,
        histograms_beyond_their_history_are_emptied,
        a_wrong_clock_does_not_wipe_the_days_out,
        how_long_days_are_kept_is_an_option,
    }
    config => {
        seven_options_have_defaults,
        an_option_can_be_set_and_unset,
        any_option_can_be_set,
        unknown_options_are_refused,
        values_outside_the_range_of_an_option_are_refused,
        a_name_of_two_options_has_the_range_of_the_first,
        a_value_that_is_no_number_counts_as_not_set,
        a_delay_without_end_is_refused,
        a_queue_may_have_a_heartbeat_of_its_own,
        a_concurrency_may_be_named_either_way,
        a_new_heartbeat_leaves_old_locks_alone,
        the_grace_can_be_set,
    }
    history => {
        a_history_tells_what_happened_in_whole_seconds,
        moments_before_the_epoch_are_rounded_down,
        any_caller_may_write_into_a_history,
        small_changes_are_not_in_the_history,
        a_long_history_keeps_its_beginning_and_its_end,
        how_long_a_history_may_be_is_an_option,
        a_history_may_have_no_limit,
        a_lower_limit_counts_from_the_next_entry,
    }
    events => {
        a_subscriber_receives_events_from_then_on,
        a_put_is_published_unless_it_changes_nothing,
        a_put_by_another_tells_the_holder,
        a_put_by_the_holder_does_not_tell_it,
        a_put_after_a_retry_tells_the_last_holder,
        a_requeue_sounds_like_a_put,
        a_pop_is_published_for_each_job,
        a_completion_is_published_after_its_milestone,
        a_failure_is_published_before_its_milestone,
        a_retry_is_published_without_a_milestone,
        a_last_retry_is_published_as_a_failure,
        an_expired_lock_is_published_with_its_warning,
        an_exhausted_job_is_published_as_a_failure,
        without_grace_warning_and_failure_are_published_in_turn,
        a_warning_is_published_before_the_popped_jobs,
        a_cancellation_is_published_before_its_milestone,
        cancellations_are_published_in_the_order_of_the_arguments,
        a_timeout_tells_the_holders,
        tracking_is_published_even_if_it_changes_nothing,
        options_are_published_when_they_are_set_and_unset,
        small_changes_make_no_sound,
        what_a_completion_brings_about_makes_no_sound,
        a_refused_command_makes_no_sound,
    }
    several_queues => {
        strict_order_empties_the_first_queue_first,
        strict_order_looks_no_further_than_it_must,
        round_robin_takes_one_from_each_in_turn,
        round_robin_goes_on_where_it_left_off,
        a_turn_beyond_the_last_queue_goes_round,
        by_priority_the_job_that_matters_most_comes_first,
        by_priority_equals_take_turns,
        by_priority_an_unpicked_take_over_is_left_alone,
        by_priority_every_queue_is_looked_at,
        paused_and_full_queues_are_passed_over,
        a_worker_is_registered_unless_every_queue_is_paused,
        with_one_queue_every_order_is_the_same,
    }
    tokens => {
        a_token_is_new_at_each_pop,
        a_token_is_as_good_as_the_holders_name,
        a_token_holds_until_the_take_over,
        an_old_token_cannot_end_a_new_attempt_of_the_same_worker,
        a_token_of_an_attempt_that_is_over_is_refused,
        a_made_up_token_is_refused,
        a_token_is_good_for_its_own_job_only,
        a_completion_may_be_repeated_with_its_token,
        a_repeated_completion_answers_as_the_first_time,
        a_completion_may_be_repeated_until_a_later_attempt_ends,
        a_completion_may_be_repeated_after_the_job_was_put_again,
        a_failure_may_be_repeated_with_its_token,
        an_attempt_cannot_repeat_what_it_did_not_do,
        a_retry_cannot_be_repeated,
        without_a_token_a_repeat_is_refused,
        a_repetition_of_another_kind_is_refused,
        a_lock_in_grace_ends_with_the_grace,
    }
    bad_input => {
        bad_names_cannot_be_written_down,
        the_longest_names_work,
        odd_names_are_names,
        numbers_that_are_not_finite_cannot_be_written_down,
        bad_counts_cannot_be_written_down,
        huge_numbers_stay_finite,
        an_unknown_job_is_refused_by_all_that_need_one,
        an_unknown_recurring_job_is_refused_by_all_that_need_one,
        a_job_that_does_not_run_cannot_be_finished,
        a_job_of_another_worker_cannot_be_finished,
        a_stale_token_is_refused_in_every_state,
        a_put_that_closes_a_cycle_is_refused,
        other_ways_to_close_a_cycle_are_refused,
        putting_a_job_badly_keeps_its_tags,
        many_names_fit_into_one_command,
        what_is_no_cycle_is_accepted,
        more_dependencies_than_can_be_followed_are_refused,
        a_payload_over_the_limit_is_refused,
        a_message_over_the_limit_is_refused,
        empty_lists_are_refused_where_names_are_needed,
        bad_option_names_are_refused,
        a_bad_value_leaves_the_option_as_it_was,
        bad_recurring_jobs_are_refused,
        a_bad_change_of_a_recurring_job_changes_none_of_it,
        a_moment_of_nought_is_legal,
        moments_before_the_epoch_are_legal,
        time_may_go_backwards,
        too_many_tags_are_refused,
        too_many_queues_are_refused,
        bad_keys_cannot_be_written_down,
        bad_portions_chances_and_backoffs_cannot_be_written_down,
        bad_terms_are_refused,
        progress_and_chunks_need_the_job,
        a_chunk_over_the_limit_is_refused,
        options_beyond_qless_take_numbers_only,
    }
    parked_pops => {
        a_parked_pop_returns_at_once_if_there_is_a_job,
        a_pop_with_no_wait_is_answered_at_once,
        a_waiting_worker_gets_a_job_that_is_put,
        a_put_wakes_no_pop_parked_on_another_queue,
        waiting_workers_are_served_in_the_order_they_came,
        a_batch_of_puts_serves_as_many_workers,
        one_job_is_enough_to_end_a_wait_for_several,
        workers_that_wait_for_several_queues_get_one_job_each,
        a_served_worker_waits_nowhere_else,
        a_wait_ends_when_its_time_is_over,
        a_shorter_wait_ends_first,
        a_waiting_worker_gets_a_job_that_comes_due,
        a_waiting_worker_gets_a_child_that_comes_due,
        a_waiting_worker_takes_over_an_expired_lock,
        a_waiting_worker_takes_over_after_the_grace,
        a_waiting_worker_gets_a_job_however_it_comes,
        pops_parked_on_a_paused_queue_are_served_when_it_resumes,
        pops_parked_at_the_concurrency_limit_are_served_when_a_slot_is_free,
        pops_parked_at_the_concurrency_limit_are_served_when_a_lock_expires,
        a_parked_pop_of_zero_jobs_blocks_no_other,
        a_worker_that_stops_waiting_takes_no_job,
        a_job_outlives_those_who_stopped_waiting,
        a_bad_pop_does_not_wait,
        a_wait_for_nothing_keeps_its_turn,
        all_expired_locks_are_handled_while_a_pop_is_parked,
        a_job_that_came_due_goes_to_the_first_parked_pop,
        a_clock_that_goes_back_does_not_lengthen_a_wait,
    }
    batches => {
        a_batch_is_answered_in_order,
        a_refused_command_stops_none_of_the_others,
        a_batch_of_puts_keeps_its_order,
        each_command_of_a_batch_has_its_own_moment,
        a_batch_publishes_its_events_in_order,
        an_empty_batch_has_no_answers,
        a_command_without_a_moment_goes_by_the_clock,
    }
    unique => {
        a_second_put_with_a_key_joins_the_first,
        a_job_can_be_joined_until_it_is_finished,
        a_put_that_joins_changes_nothing_else,
        a_key_counts_within_its_queue,
        an_id_goes_before_a_key,
        a_job_put_again_is_never_joined_to_another,
        a_key_is_free_once_its_job_is_finished_or_gone,
        a_job_takes_its_key_along,
        an_unfailed_job_takes_its_key_again,
        joining_adds_a_waiter_and_the_better_promises,
        a_status_is_found_by_id_and_by_key,
        a_job_without_terms_has_nothing_particular,
        a_job_is_on_the_terms_that_it_was_put_on,
        a_job_put_again_has_the_new_terms_or_keeps_its_own,
        a_job_put_again_keeps_its_waiters,
        a_fleeting_job_goes_with_its_last_waiter,
        a_lasting_job_outlives_its_waiters,
        an_abandoned_job_lets_go_of_its_key,
        a_fleeting_job_waits_for_its_first_waiter,
        a_fleeting_job_runs_on_and_goes_when_it_comes_back,
        an_awaited_job_comes_back,
        an_orphan_with_dependents_stays,
        a_fleeting_job_lives_on_when_it_is_put_back,
        a_job_may_be_forgotten_afterwards,
        a_job_that_goes_on_is_not_forgotten,
        a_job_that_fails_by_itself_may_be_forgotten,
        a_job_that_others_depend_on_is_not_forgotten,
    }
    results => {
        a_result_waiter_receives_the_job_ending,
        a_result_waiter_receives_every_kind_of_failure,
        waiters_receive_messages_in_the_order_they_attached,
        a_job_that_advances_has_not_ended,
        attaching_to_a_job_that_ended_answers_how,
        a_put_that_keeps_an_unfinished_job_attaches_to_it,
        a_waiter_waits_for_one_job_at_a_time,
        a_detached_waiter_receives_nothing_more,
        waiters_are_detached_with_their_stream,
        a_chunk_is_delivered_and_not_stored,
        a_chunk_without_waiters_is_delivered_to_none,
        progress_is_delivered_published_and_shown,
        progress_needs_no_terms,
        progress_ends_with_its_attempt,
        a_result_is_kept_for_as_long_as_was_asked,
        what_is_kept_is_what_came_out,
        a_job_that_fails_by_itself_leaves_a_result,
        a_result_is_replaced_by_the_next_one,
        a_forgotten_job_leaves_its_result,
        the_oldest_results_make_room,
        a_result_without_room_is_refused,
        without_room_a_job_without_a_result_ends,
        results_have_room_for_64_mib,
        a_repeated_completion_is_delivered_once,
        a_frozen_worker_changes_nothing_when_it_comes_back,
    }
    backoff_and_deadlines => {
        a_retry_by_chance_waits_as_the_backoff_says,
        without_chance_or_backoff_the_delay_counts,
        a_retry_by_chance_without_a_backoff_waits_for_the_default,
        a_backoff_saves_no_job_without_retries,
        a_backoff_begins_anew_with_a_put,
        heartbeats_do_not_move_the_deadline,
        an_attempt_past_its_deadline_is_retried,
        a_late_completion_counts_until_the_next_attempt,
        a_late_failure_counts_until_the_next_attempt,
        a_late_attempt_has_lost_a_job_that_went_on,
        an_attempt_past_its_deadline_waits_for_its_backoff,
        the_last_attempt_past_its_deadline_fails_the_job,
        a_job_tried_without_end_fails_after_ten_deadlines,
        the_shorter_deadline_counts,
        a_take_over_has_a_deadline_of_its_own,
        a_deadline_ends_a_silent_attempt,
        a_job_that_is_not_started_in_time_fails,
        a_pop_passes_over_what_comes_too_late,
        what_is_due_takes_the_place_of_what_is_late,
        a_job_that_started_in_time_is_handed_on_however_late,
        a_blocked_job_is_not_too_late,
        a_waiting_worker_is_not_given_what_comes_too_late,
        a_put_that_is_too_late_is_refused,
        a_tick_does_what_is_due_the_earliest_first,
        a_tick_counts_all_that_it_does,
    }
    crashes => {
        handing_back_costs_nothing,
        a_snoozed_job_is_scheduled,
        a_snoozed_job_waits_as_others_do,
        a_snooze_in_grace_ends_the_warning,
        a_snooze_has_its_limits,
        only_the_holder_hands_back,
        what_is_handed_back_goes_to_the_front,
        the_front_is_behind_what_was_timed_out,
        a_place_at_the_front_is_used_once,
        the_jobs_of_a_dead_worker_come_back,
        a_dead_workers_tokens_are_worth_nothing,
        an_unknown_worker_is_gone_already,
        a_worker_is_lost_once,
        a_worker_off_the_list_dies_only_with_its_jobs,
        a_dead_worker_gives_back_only_what_it_holds,
        a_dead_worker_gives_back_what_has_expired,
        a_job_whose_workers_die_is_set_aside,
        how_many_workers_may_die_can_be_set,
        a_job_tried_without_end_is_not_set_aside,
        a_crash_beyond_the_last_retry_fails_the_job,
        crashes_are_counted_across_attempts,
        too_much_evidence_is_refused,
        death_in_grace_gives_jobs_back,
        what_is_put_back_begins_anew,
        a_waiting_worker_gets_what_comes_back,
        a_waiting_worker_gets_what_was_snoozed,
    }
    relock => {
        a_restarted_worker_locks_its_jobs_again,
        what_is_locked_again_comes_in_pages,
        a_relock_may_be_for_some_queues,
        an_expired_lock_is_renewed_unless_it_was_taken_over,
        only_running_jobs_are_locked_again,
        no_limit_stops_a_relock,
        a_relock_begins_an_attempt,
        a_relock_measures_no_wait,
        a_relock_of_a_tracked_job_is_told,
        a_relock_is_a_sign_of_life,
        a_relock_has_its_limits,
    }
    set_aside => {
        a_job_that_is_set_aside_is_not_handed_out,
        a_job_that_is_put_back_is_as_it_was,
        jobs_of_all_kinds_are_set_aside_together,
        jobs_that_are_put_back_have_their_order,
        a_dependency_that_completes_meanwhile_releases_its_dependent,
        a_job_that_was_moved_is_removed,
        jobs_that_cannot_be_set_aside_stay,
        a_job_with_a_dependent_is_not_removed,
        a_job_that_is_set_aside_has_not_failed_for_its_dependents,
        a_failed_job_is_put_as_one,
        a_bad_transfer_is_refused,
    }
    periodic => {
        a_periodic_job_is_as_it_was_put,
        periodic_jobs_are_listed_by_jid,
        a_run_puts_a_job_as_of_its_time,
        a_run_is_fired_once,
        due_periodic_jobs_are_found,
        a_run_may_be_left_out,
        a_run_may_cancel_the_earlier_one,
        a_refused_run_is_shown,
        a_replaced_periodic_job_counts_on,
        bad_periodic_jobs_are_refused,
    }
    capabilities => {
        a_roll_call_counts_each_worker_once,
        a_roll_call_without_announcements_finds_no_worker,
        a_worker_may_change_what_it_can_do,
        announcements_are_listed_by_worker,
        a_put_may_require_a_capable_worker,
        a_roll_call_comes_after_ids_keys_and_expiry,
        a_silent_worker_no_longer_counts,
        a_worker_that_shows_signs_of_life_counts,
        abilities_end_with_their_worker,
        too_many_abilities_are_refused,
    }
    attempts => {
        a_job_tells_why_its_attempts_ended,
        an_attempt_may_be_ended_by_others,
        the_last_attempt_of_a_job_is_told_too,
        ends_of_attempts_are_not_in_the_history,
        a_story_is_told_in_order,
        ends_of_attempts_are_bounded,
    }
    canceled => {
        a_cancelled_job_leaves_a_tombstone,
        a_tombstone_names_who_cancelled_the_job,
        a_new_job_removes_the_tombstone_of_its_jid,
        other_ends_leave_no_tombstone,
        only_the_latest_tombstones_are_kept,
        tombstones_are_dropped_once_they_are_old,
        tombstones_can_be_turned_off,
        a_long_reason_is_refused,
        a_flush_removes_tombstones,
    }
    figures => {
        failed_jobs_are_counted_by_their_queue,
        the_oldest_waiting_job_tells_the_latency,
        the_rate_is_that_of_the_last_one_to_two_minutes,
        a_rate_goes_on_over_midnight,
        why_counts_what_stops_a_queue,
        why_names_the_limits_that_stop_a_queue,
        workers_are_listed_with_when_they_were_seen,
        events_carry_their_time,
    }
    klasses => {
        a_pop_of_klasses_gets_only_their_jobs,
        jobs_that_begin_to_wait_later_are_found_by_their_klass,
        an_expired_lock_is_taken_over_for_its_klass_only,
        a_pop_of_klasses_moves_only_their_due_jobs,
        announced_klasses_restrict_the_pops_of_a_worker,
        the_klasses_of_a_pop_go_before_announced_ones,
        several_queues_are_popped_by_klass_in_every_order,
        a_job_goes_to_the_first_parked_pop_of_its_klass,
        bad_lists_of_klasses_are_refused,
        why_names_the_klasses_that_workers_announced,
    }
    dependency_policies => {
        a_job_waits_behind_a_failed_one_by_default,
        a_job_fails_with_its_dependency,
        a_job_is_skipped_with_its_dependency,
        a_job_runs_without_its_failed_dependency,
        a_policy_applies_however_the_job_failed,
        a_policy_applies_at_once_behind_a_failed_job,
        a_job_put_back_depends_again_on_what_is_unfinished,
        a_job_put_back_runs_if_its_dependency_is_failed,
        a_job_put_back_closes_no_cycle,
        many_dependents_are_done_by_ticks,
        an_upstream_failure_ends_a_job,
        policies_end_on_a_cycle,
        why_names_the_failed_dependency,
        a_cascade_cancels_dependents,
        a_cascade_has_a_limit,
    }
    limits => {
        a_queue_has_the_limits_set_last,
        a_full_queue_takes_no_new_job,
        a_full_queue_takes_what_is_under_way,
        limits_may_differ_by_priority,
        the_smaller_limit_counts,
        bad_limits_are_refused,
        bad_rates_cannot_be_written_down,
        jobs_start_no_more_often_than_they_may,
        a_burst_may_start_after_a_pause,
        a_queue_at_its_rate_is_passed_over,
        a_peek_is_no_start,
        a_take_over_is_a_start,
        a_clock_that_goes_back_does_not_stop_a_queue,
        new_limits_begin_anew,
        a_waiting_worker_is_served_when_a_job_may_start,
    }
    why => {
        an_unknown_job_has_no_reason,
        asking_why_changes_nothing,
        a_running_job_is_in_its_workers_hands,
        a_warned_worker_has_its_grace,
        a_job_that_is_over_says_how,
        a_blocked_job_names_what_it_waits_for,
        a_scheduled_job_says_when,
        a_waiting_job_is_next_or_behind_others,
        a_job_that_is_too_late_says_so,
        a_full_queue_names_who_has_its_places,
        a_queue_at_its_rate_says_when_it_goes_on,
        a_job_without_workers_says_so,
        a_worker_that_came_before_the_first_job_counts,
        all_reasons_are_listed_in_their_order,
    }
    cursors => {
        a_listener_goes_on_where_it_stopped,
        a_listener_that_missed_nothing_only_goes_on,
        positions_are_the_same_for_all,
        a_cursor_that_is_ahead_is_refused,
        a_cursor_that_is_too_old_is_refused,
        events_are_not_kept_without_subscribers,
    }
    ready => {
        a_ready_wait_returns_at_once_if_there_is_a_job,
        a_ready_wait_of_zero_seconds_is_answered_at_once,
        one_job_wakes_all_ready_waits_of_its_queue,
        parked_pops_are_served_before_ready_waits,
        a_job_that_came_due_for_a_parked_pop_wakes_no_ready_wait,
        word_of_one_queue_is_enough,
        a_ready_wait_times_out,
        what_comes_due_is_word,
        word_is_given_however_a_job_comes,
        a_queue_that_hands_out_nothing_gives_no_word,
        a_ready_wait_registers_no_worker,
        a_dropped_ready_wait_blocks_no_other,
        word_of_no_queue_or_of_too_many_is_refused,
    }
    numbers => {
        a_counter_hands_out_no_number_twice,
        each_counter_has_numbers_of_its_own,
        bad_allotments_are_refused,
        numbers_are_handed_out_in_silence,
        waiting_jobs_are_counted_by_priority,
        counting_by_priority_moves_every_due_job,
        jobs_that_came_back_are_counted_where_they_stand,
    }
    flush => {
        a_flushed_system_is_as_new,
        a_flush_gives_no_number_twice,
        a_flush_tells_clients_that_wait,
        a_flush_of_nothing_is_refused,
    }
    select => {
        a_filter_selects_by_each_field,
        a_selected_job_is_shown_in_short,
        complete_jobs_are_selected_by_their_last_queue,
        ages_and_attempts_are_compared,
        payloads_are_selected_by_a_path,
        pages_together_show_each_job_once,
        pages_show_a_job_once_while_others_come_and_go,
        pages_show_a_failed_job_once_while_others_are_unfailed,
        jobs_of_forgotten_queues_are_selected,
        an_act_changes_what_is_selected_at_that_moment,
        bulk_cancels_are_published,
        a_dependency_is_cancelled_only_with_its_dependents,
        jobs_are_requeued_from_any_state,
        failed_jobs_are_unfailed_by_filter,
        priorities_and_tags_are_changed_by_filter,
        a_bulk_act_continues_after_its_cursor,
        an_act_on_named_jobs_compares_all_but_the_payload,
        bad_selections_are_refused,
    }
    functions => {
        only_functions_have_long_names,
        the_longest_functions_work,
        a_waiting_worker_gets_a_job_of_the_longest_function,
        what_is_carried_aside_stays_with_the_job,
        a_trace_context_stays_with_the_job,
        a_trace_context_is_that_of_the_last_put,
        a_job_put_again_carries_what_the_new_terms_say,
        what_a_put_that_joins_carries_is_dropped,
        too_much_aside_is_refused,
        a_progress_text_is_delivered_and_not_stored,
        too_much_said_is_refused,
        progress_is_shown_as_it_was_said,
    }
    trace => {
        the_worked_trace_of_the_specification,
    }
}
