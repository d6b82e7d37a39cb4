//! The conformance suite of every engine of the bus. Each check takes a fresh [`Harness`] and
//! panics with a sentence when the promise is broken; [`crate::conformance_suite`] makes one test
//! of each.
//!
//! A "process" is a bus handle of its own on the harness's data: two of them share nothing but the
//! engine.

mod effects;
mod groups;
mod harness;
mod records;

pub use effects::{
    Ledger, a_claim_lost_in_passing_is_renewed, a_start_that_takes_long_is_come_to,
    an_empty_account_begins_at_the_oldest_record, exactly_once_through_crashes,
    start_is_asked_and_obeyed, work,
};
pub use groups::{
    a_commit_survives_and_the_rest_comes_again, a_dead_member_is_replaced,
    a_lost_partition_cannot_be_committed, an_observer_sees_the_ends_and_what_a_group_has_done,
    groups_are_independent, members_share_the_partitions,
};
pub use harness::{
    Harness, PATIENCE, Process, follow, join, next, number, numbered, publish, read,
    wait_for_partitions,
};
pub use records::{
    a_log_keeps_its_name_and_tells_its_end, concurrent_publishers_lose_and_double_nothing,
    durable_across_reopening, lag_counts_what_waits, limits_are_refused_with_their_reason,
    next_can_be_cancelled, order_per_key, read_back_begins_at_the_oldest_and_its_lag_tells_the_end,
    tail_gives_what_comes_after_it,
};

#[macro_export]
macro_rules! conformance_suite {
    ($harness:expr) => {
        $crate::conformance_suite!($harness;
            order_per_key, durable_across_reopening, concurrent_publishers_lose_and_double_nothing,
            limits_are_refused_with_their_reason, tail_gives_what_comes_after_it,
            read_back_begins_at_the_oldest_and_its_lag_tells_the_end, next_can_be_cancelled,
            lag_counts_what_waits, a_log_keeps_its_name_and_tells_its_end, members_share_the_partitions, a_dead_member_is_replaced,
            a_commit_survives_and_the_rest_comes_again, a_lost_partition_cannot_be_committed,
            an_observer_sees_the_ends_and_what_a_group_has_done, groups_are_independent, start_is_asked_and_obeyed, a_start_that_takes_long_is_come_to, an_empty_account_begins_at_the_oldest_record, a_claim_lost_in_passing_is_renewed, exactly_once_through_crashes);
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
