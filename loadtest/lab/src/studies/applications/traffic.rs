//! The paper's applications and networks as scenarios.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::mix::{Background, Mix};
use crate::scenario::{Buffers, Controller, Direction, Half, Interface, LossSpec, Scenario};
use crate::seed::derive_seed;

/// Parts of an application with several kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Application {
    Video,
    /// The three games together.
    Game,
    Small,
    Medium,
    Large,
}

/// The pair of networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Pair {
    WlanWlan,
    ThreeThree,
    WlanThree,
}

/// Mean interval in milliseconds and mean size in bytes of the paper's game traces.
const GAMES: [(f64, f64); 3] = [(81.4, 142.7), (74.1, 113.0), (167.7, 101.7)];
const GAME_FIRST_BYTES: u64 = 200_000;
const GAME_BURST_EVERY_S: f64 = 30.0;
const GAME_BURST_PACKETS: u32 = 8;
/// A run without its end by then is not complete.
const PAGE_LIMIT_S: f64 = 120.0;
const WLAN_QUEUE_PACKETS: u64 = 100;
const THREE_QUEUE_PACKETS: u64 = 3_750;
const PACKET_BYTES: u64 = 1_500;
const KIB: u64 = 1_024;

impl Application {
    pub(crate) const ALL: [Self; 5] = [
        Self::Video,
        Self::Game,
        Self::Small,
        Self::Medium,
        Self::Large,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Video => "Video",
            Self::Game => "Gaming",
            Self::Small => "Small page (Wikipedia)",
            Self::Medium => "Medium page (Amazon)",
            Self::Large => "Large page (Huffington Post)",
        }
    }

    /// Its row in the data file.
    pub(crate) fn key(self, background: bool) -> String {
        let name = match self {
            Self::Video => "video",
            Self::Game => "game",
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
        };
        format!("{name}{}", if background { "_background" } else { "" })
    }

    /// Table and row of the shares of paths; of the games the first one.
    pub(crate) fn in_tables(self, key: &str) -> (&'static str, String) {
        match self {
            Self::Video => ("video", key.to_owned()),
            Self::Game => ("game", key.replace("game", "game1")),
            _ => ("web", key.to_owned()),
        }
    }

    pub(crate) fn is_page(self) -> bool {
        !matches!(self, Self::Video | Self::Game)
    }

    pub(crate) fn unit(self) -> &'static str {
        if self.is_page() { "s" } else { "ms" }
    }

    pub(crate) fn measure(self) -> &'static str {
        if self.is_page() {
            "download time"
        } else {
            "message delay"
        }
    }

    /// The kinds of traffic, each run by itself.
    fn mixes(self, seconds: f64) -> Vec<Mix> {
        let page = |objects, kib| {
            vec![Mix::Page {
                objects,
                bytes: kib * KIB,
                at_once: 6,
            }]
        };
        match self {
            Self::Video => vec![Mix::Video {
                kbit: 950.0,
                frames_per_s: 30.0,
                seconds,
            }],
            Self::Game => GAMES
                .into_iter()
                .map(|(interval_ms, mean_bytes)| Mix::Game {
                    interval_ms,
                    mean_bytes,
                    first_bytes: GAME_FIRST_BYTES,
                    burst_every_s: GAME_BURST_EVERY_S,
                    burst_packets: GAME_BURST_PACKETS,
                    seconds,
                })
                .collect(),
            Self::Small => page(15, 72),
            Self::Medium => page(54, 1_024),
            Self::Large => page(138, 3_994),
        }
    }
}

impl Pair {
    pub(crate) const ALL: [Self; 3] = [Self::WlanWlan, Self::ThreeThree, Self::WlanThree];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::WlanWlan => "WLAN-WLAN",
            Self::ThreeThree => "3G-3G",
            Self::WlanThree => "WLAN-3G",
        }
    }

    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::WlanWlan => "wlan_wlan",
            Self::ThreeThree => "3g_3g",
            Self::WlanThree => "wlan_3g",
        }
    }

    fn is_wlan(self) -> [bool; 2] {
        match self {
            Self::WlanWlan => [true, true],
            Self::ThreeThree => [false, false],
            Self::WlanThree => [true, false],
        }
    }

    fn buffers(self) -> Buffers {
        match self {
            Self::ThreeThree => Buffers {
                send_bytes: 256 * KIB,
                receive_bytes: 256 * KIB,
            },
            _ => Buffers {
                send_bytes: 1_024 * KIB,
                receive_bytes: 2_048 * KIB,
            },
        }
    }
}

/// The runs of one repetition of a cell: one for each kind of traffic, over both paths.
pub(crate) fn scenarios(
    application: Application,
    background: bool,
    pair: Pair,
    seed: u64,
    seconds: f64,
    buffer_bytes: Option<u64>,
) -> Vec<Scenario> {
    let mut random = ChaCha8Rng::seed_from_u64(derive_seed(seed, 900));
    let mut interfaces = pair.is_wlan().map(|wlan| interface(wlan, &mut random));
    // Steering knows accesses by their names.
    for (interface, number) in interfaces.iter_mut().zip(1..) {
        interface.name = format!("{} {number}", interface.name);
    }
    let buffers = buffer_bytes.map_or(pair.buffers(), |bytes| Buffers {
        send_bytes: bytes,
        receive_bytes: bytes,
    });
    let mixes = application.mixes(seconds).into_iter().zip(0u64..);
    mixes
        .map(|(mix, kind)| {
            let name = format!(
                "applications.{}.{}.{kind}",
                application.key(background),
                pair.key()
            );
            let limit_s = if application.is_page() {
                PAGE_LIMIT_S
            } else {
                seconds + 30.0
            };
            let mut scenario = Scenario::transfer(
                name,
                derive_seed(seed, 910 + kind),
                Direction::Download,
                1,
                Controller::Ours,
                limit_s,
                interfaces.to_vec(),
            );
            scenario.mix = Some(mix);
            scenario.buffers = Some(buffers);
            if background {
                scenario.competitors = vec![Controller::Cubic; 2];
                let mut sources = Background::of_the_paper();
                if pair == Pair::ThreeThree {
                    sources.packet_bytes = 1_000;
                }
                scenario.background = Some(sources);
            }
            scenario
        })
        .collect()
}

fn interface(wlan: bool, random: &mut ChaCha8Rng) -> Interface {
    let mut draw = |from: f64, to: f64| from + (to - from) * random.random::<f64>();
    let (name, mbit, delay_ms, loss, packets) = if wlan {
        (
            "wlan",
            draw(20.0, 30.0),
            draw(20.0, 25.0),
            draw(0.01, 0.02),
            WLAN_QUEUE_PACKETS,
        )
    } else {
        (
            "3g",
            draw(3.0, 5.0),
            draw(65.0, 75.0),
            0.0,
            THREE_QUEUE_PACKETS,
        )
    };
    let mut half = Half::constant(mbit, delay_ms);
    half.loss = LossSpec::Random(loss);
    half.queue_bytes = Some(packets * PACKET_BYTES);
    Interface::alike(name, half)
}
