//! Real-time priority for the threads of a run, so that whatever else the machine does is not
//! measured.

use std::num::NonZeroU64;

use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadPriorityValue, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

/// The role of a thread.
#[derive(Debug, Clone, Copy)]
pub enum Role {
    /// Goes before the endpoints, or it would be late whenever they are busy.
    Emulator,
    Endpoint,
}

/// Whether threads of this process get real-time priority.
pub(crate) fn is_permitted() -> bool {
    // On a thread of its own: the priority is for good.
    let thread = std::thread::spawn(|| raise(Role::Endpoint));
    thread.join().unwrap_or(false)
}

/// Sets the least timer slack and real-time priority for the calling thread; whether it has got the
/// latter.
pub fn raise(role: Role) -> bool {
    // Without the right to it the default of 50 us remains.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let (value, policy) = match role {
        Role::Emulator => (10u8, RealtimeThreadSchedulePolicy::Fifo),
        Role::Endpoint => (5u8, RealtimeThreadSchedulePolicy::RoundRobin),
    };
    let Ok(value) = ThreadPriorityValue::try_from(value) else {
        return false;
    };
    set_thread_priority_and_policy(
        thread_native_id(),
        ThreadPriority::Crossplatform(value),
        ThreadSchedulePolicy::Realtime(policy),
    )
    .is_ok()
}
