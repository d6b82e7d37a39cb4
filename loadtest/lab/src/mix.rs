//! The traffic of the paper on latency-sensitive applications: video, games, web pages, and what
//! runs beside them.
//!
//! Video and games are messages in order on one stream, since the paper carries them over TCP and
//! SCTP. A message's delay runs from its making to the reading of its last byte. A page is a number
//! of objects, of which so many are fetched at once. Traffic flows in the scenario's direction.

mod application;
mod copying;
mod reading;

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::seed::derive_seed;

pub(crate) use application::MixApplication;
pub use reading::Noted;

/// Messages of one run.
const MESSAGES_MAX: usize = 200_000;
/// Packets of the background on one link in one run; the sources fall silent then.
const BACKGROUND_PACKETS_MAX: usize = 2_000_000;
/// Bytes of the time at which a sender began, at the head of its stream.
pub(crate) const HEAD_BYTES: u64 = 8;
/// Largest message of a game, a packet of full size.
const GAME_BYTES_MAX: f64 = 1_400.0;
/// Smallest message of a game.
const GAME_BYTES_MIN: f64 = 20.0;
/// Spread of the sizes of a page's objects: standard deviation of their logarithm.
const OBJECT_SPREAD: f64 = 1.0;

/// Traffic of an application in place of one long transfer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Mix {
    /// Frames of one size at a constant rate.
    Video {
        kbit: f64,
        frames_per_s: f64,
        seconds: f64,
    },
    /// Small messages at random intervals after a first bulk, with bursts of full packets between.
    Game {
        interval_ms: f64,
        mean_bytes: f64,
        first_bytes: u64,
        burst_every_s: f64,
        burst_packets: u32,
        seconds: f64,
    },
    /// A page is complete when every object is.
    Page {
        objects: u32,
        bytes: u64,
        at_once: u32,
    },
}

/// Traffic beside the measured flow on every link that it uses.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Background {
    /// The mean rate of the on-off sources as a share of the link's rate.
    pub share: f64,
    /// Packets a second of a source that is on, and their size.
    pub packets_per_s: f64,
    pub packet_bytes: u64,
    /// Pareto distribution of the lengths of on and off times, in seconds.
    pub shape: f64,
    pub scale_s: f64,
    /// The measured flow begins so much later.
    pub lead_s: f64,
}

impl Background {
    /// As the paper describes it; frames of 5000 bytes leave as packets of full size.
    pub fn of_the_paper() -> Self {
        Self {
            share: 0.1,
            packets_per_s: 25.0,
            packet_bytes: 5_000,
            shape: 1.5,
            scale_s: 0.166_666_7,
            lead_s: 4.0,
        }
    }

    /// Times and sizes of the packets that the sources put on one link before `until`.
    pub(crate) fn packets(&self, mbit: f64, until: Duration, seed: u64) -> Vec<(Duration, u64)> {
        let on_mbit = self.packets_per_s * self.packet_bytes as f64 * 8e-6;
        // A source is on for half of the time.
        let sources = (self.share * mbit / (on_mbit / 2.0)).round().max(1.0) as usize;
        let mut packets = Vec::new();
        for source in 0..sources {
            let mut random = ChaCha8Rng::seed_from_u64(derive_seed(seed, source as u64));
            let pareto = |random: &mut ChaCha8Rng| {
                let uniform: f64 = 1.0 - random.random::<f64>();
                self.scale_s / uniform.powf(1.0 / self.shape)
            };
            let mut at_s = random.random::<f64>();
            while at_s < until.as_secs_f64() && packets.len() < BACKGROUND_PACKETS_MAX {
                let end_s = at_s + pareto(&mut random);
                while at_s < end_s.min(until.as_secs_f64()) {
                    let at = Duration::from_secs_f64(at_s);
                    let mut left = self.packet_bytes;
                    while left > 0 {
                        let bytes = left.min(crate::packet::LINK_MTU_BYTES);
                        packets.push((at, bytes));
                        left -= bytes;
                    }
                    at_s += 1.0 / self.packets_per_s;
                }
                at_s = end_s + pareto(&mut random);
            }
        }
        packets.sort();
        packets
    }
}

/// A message, by the time after the beginning at which it is made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Message {
    pub(crate) at: Duration,
    pub(crate) bytes: u64,
}

impl Mix {
    /// Messages, the same at both ends; none of a page.
    pub(crate) fn messages(&self, seed: u64) -> Vec<Message> {
        let mut random = ChaCha8Rng::seed_from_u64(derive_seed(seed, 500));
        match *self {
            Self::Video {
                kbit,
                frames_per_s,
                seconds,
            } => {
                let bytes = (kbit * 1e3 / 8.0 / frames_per_s).round().max(1.0) as u64;
                let count = ((seconds * frames_per_s) as usize).min(MESSAGES_MAX);
                let at = |frame: usize| Duration::from_secs_f64(frame as f64 / frames_per_s);
                (0..count)
                    .map(|frame| Message {
                        at: at(frame),
                        bytes,
                    })
                    .collect()
            }
            Self::Game {
                interval_ms,
                mean_bytes,
                first_bytes,
                burst_every_s,
                burst_packets,
                seconds,
            } => {
                let mut messages = vec![Message {
                    at: Duration::ZERO,
                    bytes: first_bytes.max(1),
                }];
                let mut at_s = 0.0;
                let mut burst_s = burst_every_s;
                while messages.len() < MESSAGES_MAX {
                    at_s += exponential(&mut random) * interval_ms / 1e3;
                    if at_s >= seconds {
                        break;
                    }
                    let at = Duration::from_secs_f64(at_s);
                    if at_s >= burst_s {
                        burst_s += burst_every_s;
                        let bytes = u64::from(burst_packets) * GAME_BYTES_MAX as u64;
                        messages.push(Message {
                            at,
                            bytes: bytes.max(1),
                        });
                        continue;
                    }
                    let beyond = (mean_bytes - GAME_BYTES_MIN).max(0.0);
                    let bytes = GAME_BYTES_MIN + exponential(&mut random) * beyond;
                    let bytes = bytes.min(GAME_BYTES_MAX) as u64;
                    messages.push(Message {
                        at,
                        bytes: bytes.max(1),
                    });
                }
                messages
            }
            Self::Page { .. } => Vec::new(),
        }
    }

    /// Sizes of a page's objects, which add up to the page.
    pub(crate) fn objects(&self, seed: u64) -> Vec<u64> {
        let Self::Page { objects, bytes, .. } = *self else {
            return Vec::new();
        };
        let mut random = ChaCha8Rng::seed_from_u64(derive_seed(seed, 501));
        let weights: Vec<f64> = (0..objects.max(1))
            .map(|_| (OBJECT_SPREAD * normal(&mut random)).exp())
            .collect();
        let sum: f64 = weights.iter().sum();
        let mut sizes: Vec<u64> = weights
            .iter()
            .map(|weight| ((weight / sum * bytes as f64) as u64).max(1))
            .collect();
        let rest = bytes.saturating_sub(sizes.iter().sum());
        if let Some(first) = sizes.first_mut() {
            *first += rest;
        }
        sizes
    }

    pub(crate) fn at_once(&self) -> usize {
        match *self {
            Self::Page { at_once, .. } => at_once.max(1) as usize,
            Self::Video { .. } | Self::Game { .. } => 1,
        }
    }
}

fn exponential(random: &mut ChaCha8Rng) -> f64 {
    -(1.0 - random.random::<f64>()).ln()
}

fn normal(random: &mut ChaCha8Rng) -> f64 {
    let radius = (2.0 * exponential(random)).sqrt();
    radius * (std::f64::consts::TAU * random.random::<f64>()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn game() -> Mix {
        Mix::Game {
            interval_ms: 81.4,
            mean_bytes: 142.7,
            first_bytes: 200_000,
            burst_every_s: 30.0,
            burst_packets: 8,
            seconds: 600.0,
        }
    }

    #[test]
    fn a_game_has_the_published_mean_interval_and_size() {
        let messages = game().messages(7);
        let small: Vec<&Message> = messages.iter().filter(|m| m.bytes <= 1_400).collect();
        let interval_ms = 600e3 / small.len() as f64;
        let bytes = small.iter().map(|m| m.bytes as f64).sum::<f64>() / small.len() as f64;
        assert!((interval_ms - 81.4).abs() < 5.0, "{interval_ms}");
        assert!((bytes - 142.7).abs() < 8.0, "{bytes}");
        assert_eq!(messages, game().messages(7));
        assert_ne!(messages, game().messages(8));
    }

    #[test]
    fn the_objects_of_a_page_add_up_to_it() {
        let page = Mix::Page {
            objects: 54,
            bytes: 1_048_576,
            at_once: 6,
        };
        let objects = page.objects(3);
        assert_eq!(objects.len(), 54);
        assert_eq!(objects.iter().sum::<u64>(), 1_048_576);
    }

    #[test]
    fn the_background_takes_its_share_of_the_link() {
        let until = Duration::from_secs(2_000);
        let packets = Background::of_the_paper().packets(25.0, until, 1);
        let bytes: u64 = packets.iter().map(|packet| packet.1).sum();
        let mbit = bytes as f64 * 8e-6 / 2_000.0;
        // Pareto times of shape 1.5 have no variance: the mean comes slowly.
        assert!((1.5..4.0).contains(&mbit), "{mbit}");
    }
}
