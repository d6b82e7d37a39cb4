//! Requirements on every engine of the store. Each check takes a fresh [`Harness`] and panics with
//! a sentence if the promise is broken. [`crate::conformance_suite`] makes one test of each.
//!
//! A "process" is a store handle of its own on the harness's data: two of them share nothing but
//! the engine.

mod alerts;
mod harness;
mod ledgers;
mod notices;
mod paths;
mod patients;
mod people;
mod progress;
mod proofs;
mod register;
mod sessions;
mod silent;
mod vitals;

pub use alerts::{
    a_batch_that_contradicts_itself_is_refused,
    a_bounded_list_of_alerts_leaves_out_what_matters_least,
    a_conflicting_transition_undoes_the_whole_write, alerts_are_listed_by_their_last_revision,
    high_alerts_leave_the_outbox_first, outbox_keeps_entries_until_cleared,
    rule_states_follow_their_partition, the_canary_is_in_no_list_and_is_nobody,
};
pub use harness::{Harness, Process, SECOND_US, START_US, batch, log, ok, sample, waveform};
pub use ledgers::{
    a_gap_has_its_cause, a_stretch_is_complete_only_by_evidence,
    another_journal_or_wearer_proves_nothing_by_itself,
};
pub use notices::{
    a_failure_hastens_the_timer_of_its_alert_alone, a_lane_keeps_its_order_whatever_its_urgency,
    a_tenants_documents_have_a_bound_in_bytes, a_timer_belongs_to_whoever_changes_it_first,
    documents_are_versioned_and_scoped, no_notice_waits_for_a_clock_that_was_set_back,
    notices_are_kept_with_their_alert, notices_that_fail_hold_up_no_others,
    notices_that_nobody_has_tried_are_counted, notices_wait_in_order_until_they_have_an_outcome,
    the_most_urgent_notices_overtake_ten_thousand_others,
    the_notices_of_one_gateway_delay_no_others, two_members_take_each_notice_once,
    what_has_failed_is_due_at_once_when_its_channel_returns,
};
pub use paths::{
    a_gateway_has_a_bounded_number_of_newest_reports,
    a_namesakes_reports_are_not_shown_to_whom_the_name_belongs,
    a_report_of_the_future_hides_no_later_one, newest_reports_are_read_in_pages,
    path_reports_are_unique_and_scoped, the_newest_report_of_each_path_is_known,
};
pub use patients::{
    a_merged_record_hands_over_its_sensors_and_takes_them_back,
    a_stay_ends_with_everything_that_is_open, an_erased_patient_leaves_nothing_and_does_not_return,
    changes_of_patients_are_made_together_or_not_at_all,
};
pub use people::{
    accounts_are_created_once, audit_is_kept_in_order, every_question_stays_in_its_tenant,
    the_newest_restore_is_known, the_register_refuses_other_tenants,
};
pub use progress::{
    a_fenced_write_leaves_nothing, a_newer_claim_fences_the_older,
    a_position_counts_for_the_log_that_it_names, gaps_of_logs_have_a_bound,
    progress_survives_reopening, two_processes_write_at_once, writes_are_ready_and_durable,
};
pub use proofs::a_heartbeat_is_sent_by_one_member_and_confirmed_by_its_token;
pub use register::{
    assignments_of_a_device_do_not_overlap, the_register_is_read_in_pages,
    what_is_kept_apart_stays_until_it_is_settled,
};
pub use sessions::{
    a_changed_account_ends_its_sessions, a_display_is_known_by_name_until_it_is_revoked,
    a_display_renews_its_token_and_a_revoked_one_does_not,
    sessions_have_bounds_and_nobody_crowds_out_another,
    sessions_outlive_a_process_and_end_for_all_at_once,
};
pub use silent::{
    a_silence_is_open_until_its_alert_ends, a_subject_has_one_open_silence,
    members_that_find_a_silence_at_once_raise_it_once,
};
pub use vitals::{
    duplicates_are_left_out_and_counted, expiry_removes_only_what_is_older,
    gaps_that_overlap_are_found, latest_follows_device_time, newest_values_are_read_in_pages,
    samples_come_back_as_they_were, series_are_thinned_without_losing_extremes,
    waveforms_become_points_of_their_own_times,
    what_a_clock_ahead_wrote_is_not_the_newest_for_hours,
};

#[macro_export]
macro_rules! conformance_suite {
    ($harness:expr) => {
        $crate::conformance_suite!($harness;
            samples_come_back_as_they_were, duplicates_are_left_out_and_counted, latest_follows_device_time,
            what_a_clock_ahead_wrote_is_not_the_newest_for_hours, a_report_of_the_future_hides_no_later_one,
            no_notice_waits_for_a_clock_that_was_set_back,
            series_are_thinned_without_losing_extremes, waveforms_become_points_of_their_own_times,
            gaps_that_overlap_are_found, a_stretch_is_complete_only_by_evidence, a_gap_has_its_cause,
            another_journal_or_wearer_proves_nothing_by_itself, expiry_removes_only_what_is_older,
            a_newer_claim_fences_the_older, a_fenced_write_leaves_nothing, progress_survives_reopening,
            a_position_counts_for_the_log_that_it_names, gaps_of_logs_have_a_bound,
            two_processes_write_at_once, writes_are_ready_and_durable,
            alerts_are_listed_by_their_last_revision, a_conflicting_transition_undoes_the_whole_write,
            a_bounded_list_of_alerts_leaves_out_what_matters_least,
            a_batch_that_contradicts_itself_is_refused,
            the_canary_is_in_no_list_and_is_nobody,
            outbox_keeps_entries_until_cleared, rule_states_follow_their_partition,
            a_silence_is_open_until_its_alert_ends, a_subject_has_one_open_silence,
            members_that_find_a_silence_at_once_raise_it_once,
            notices_wait_in_order_until_they_have_an_outcome, two_members_take_each_notice_once,
            notices_that_fail_hold_up_no_others, the_notices_of_one_gateway_delay_no_others,
            notices_that_nobody_has_tried_are_counted,
            the_most_urgent_notices_overtake_ten_thousand_others,
            a_lane_keeps_its_order_whatever_its_urgency,
            what_has_failed_is_due_at_once_when_its_channel_returns,
            a_heartbeat_is_sent_by_one_member_and_confirmed_by_its_token,
            high_alerts_leave_the_outbox_first,
            a_timer_belongs_to_whoever_changes_it_first,
            a_failure_hastens_the_timer_of_its_alert_alone, notices_are_kept_with_their_alert,
            documents_are_versioned_and_scoped, a_tenants_documents_have_a_bound_in_bytes,
            path_reports_are_unique_and_scoped, the_newest_report_of_each_path_is_known,
            a_gateway_has_a_bounded_number_of_newest_reports, newest_reports_are_read_in_pages,
            newest_values_are_read_in_pages,
            a_namesakes_reports_are_not_shown_to_whom_the_name_belongs,
            sessions_outlive_a_process_and_end_for_all_at_once, a_changed_account_ends_its_sessions,
            sessions_have_bounds_and_nobody_crowds_out_another,
            a_display_is_known_by_name_until_it_is_revoked,
            a_display_renews_its_token_and_a_revoked_one_does_not,
            accounts_are_created_once, audit_is_kept_in_order, every_question_stays_in_its_tenant,
            the_register_refuses_other_tenants, the_newest_restore_is_known, assignments_of_a_device_do_not_overlap,
            the_register_is_read_in_pages,
            a_stay_ends_with_everything_that_is_open, changes_of_patients_are_made_together_or_not_at_all,
            a_merged_record_hands_over_its_sensors_and_takes_them_back,
            an_erased_patient_leaves_nothing_and_does_not_return,
            what_is_kept_apart_stays_until_it_is_settled);
    };
    ($harness:expr; $($check:ident),+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                let harness = $harness;
                $crate::conformance::$check(&harness).await;
            }
        )+
    };
}
