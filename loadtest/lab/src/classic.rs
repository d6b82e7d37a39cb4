//! Congestion controllers of the papers that the library lacks, for comparison in the lab alone.
//!
//! OLIA is the coupled control of the PALS paper and of MPTCP in the paper on applications. FAST is
//! the delay-based one in the tables of the drive tests. Both keep windows in bytes, start slowly
//! as RFC 9002 has it, and are paced by the library.

mod fast;
mod olia;

pub(crate) use fast::FastConfig;
pub(crate) use olia::OliaConfig;

/// As RFC 9002 asks for, and as the library's own controllers begin.
const INITIAL_WINDOW_BYTES: u64 = 12_000;
/// Packets that a window holds at the least.
const PACKETS_MIN: u64 = 2;
