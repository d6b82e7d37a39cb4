//! The steering document: accesses with their price, and an ordered list of rules.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use calendar::Zone;
use serde::{Deserialize, Serialize};

/// The only format so far.
pub(super) const FORMAT: u32 = 1;

/// Contents of a steering document. It is valid: [`Document::from_toml`] and
/// [`Document::from_json`] refuse any other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Format of the document, 1.
    pub format: u32,
    /// Age in ms that vitals may have when a gateway uploads them. None: the gateway's own setting.
    /// Alerts never wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freshness_ms: Option<u32>,
    /// Settings of single gateways.
    #[serde(default, rename = "gateway", skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<GatewayTerms>,
    /// Sets of gateways that rules name.
    #[serde(default, rename = "group", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// Terms of the accesses. An entry with a name comes before one with a kind alone.
    #[serde(default, rename = "access", skip_serializing_if = "Vec::is_empty")]
    pub accesses: Vec<AccessTerms>,
    /// The first rule that matches decides. Without one, flows are steered as by mode `auto`.
    #[serde(default, rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}

impl Default for Document {
    fn default() -> Self {
        Self {
            format: FORMAT,
            freshness_ms: None,
            gateways: Vec::new(),
            groups: Vec::new(),
            accesses: Vec::new(),
            rules: Vec::new(),
        }
    }
}

/// Settings of one gateway, in place of those for all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayTerms {
    /// As its certificate names it.
    pub name: String,
    pub freshness_ms: u32,
}

/// A set of gateways.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Unique in the document; rules name it in `match.group`.
    pub name: String,
    /// Names as certificates have them. A star at the end stands for any rest of a name.
    pub gateways: Vec<String>,
}

impl Document {
    /// Age that vitals of this gateway may have. None: its own setting.
    pub fn freshness_of(&self, gateway: &str) -> Option<Duration> {
        let mut gateways = self.gateways.iter();
        let own = gateways.find(|terms| terms.name == gateway);
        let ms = own.map(|terms| terms.freshness_ms).or(self.freshness_ms)?;
        Some(Duration::from_millis(ms.into()))
    }
}

/// Price and limits of one access by its name, or of all accesses of a kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessTerms {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// In the currency of the installation.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub price_per_gb: f64,
    /// Bytes of a month in GB (10^9), both directions. Bulk leaves the access at the cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_gb: Option<f64>,
    /// The same of a week, which begins on Monday.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_gb_per_week: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_gb_per_day: Option<f64>,
    /// Day of the month on which the cap begins anew, 1 to 31. Shorter months begin it on their
    /// last day.
    #[serde(default = "first")]
    pub reset_day: u8,
    /// IANA name of the time zone in which days begin. None: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub metered: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub roaming: bool,
}

/// The time that a cap is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Period {
    Day,
    Week,
    Month,
}

impl Period {
    /// The longest first: where the same is left of two caps, the longer one binds.
    pub const ALL: [Period; 3] = [Period::Month, Period::Week, Period::Day];

    pub(super) fn noun(self) -> &'static str {
        match self {
            Period::Day => "day",
            Period::Week => "week",
            Period::Month => "month",
        }
    }
}

/// Bytes of an access since each period began, both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    pub day_bytes: u64,
    pub week_bytes: u64,
    pub month_bytes: u64,
}

impl Used {
    fn of(&self, period: Period) -> u64 {
        match period {
            Period::Day => self.day_bytes,
            Period::Week => self.week_bytes,
            Period::Month => self.month_bytes,
        }
    }
}

/// A cap, and how much of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cap {
    pub period: Period,
    pub bytes: u64,
    pub left_bytes: u64,
}

fn first() -> u8 {
    1
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn yes() -> bool {
    true
}

fn is_true(value: &bool) -> bool {
    *value
}

impl AccessTerms {
    /// The cap of this period.
    pub fn cap_bytes(&self, period: Period) -> Option<u64> {
        let gb = match period {
            Period::Day => self.cap_gb_per_day,
            Period::Week => self.cap_gb_per_week,
            Period::Month => self.cap_gb,
        };
        // Saturates.
        gb.map(|gb| (gb * 1e9) as u64)
    }

    /// The cap of which the least is left.
    pub fn nearest_cap(&self, used: &Used) -> Option<Cap> {
        let caps = Period::ALL.into_iter().filter_map(|period| {
            let bytes = self.cap_bytes(period)?;
            let left_bytes = bytes.saturating_sub(used.of(period));
            Some(Cap {
                period,
                bytes,
                left_bytes,
            })
        });
        caps.min_by_key(|cap| cap.left_bytes)
    }

    /// The zone in which the reset day begins.
    pub fn zone(&self) -> Zone {
        // A checked document names no other.
        let named = self.time_zone.as_deref().and_then(Zone::parse);
        named.unwrap_or_default()
    }
}

/// Kind of access network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Wifi,
    Cellular,
    Satellite,
    Ethernet,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Wifi, Self::Cellular, Self::Satellite, Self::Ethernet];

    pub fn name(self) -> &'static str {
        match self {
            Self::Wifi => "wifi",
            Self::Cellular => "cellular",
            Self::Satellite => "satellite",
            Self::Ethernet => "ethernet",
        }
    }

    /// The kind that usual names of interfaces suggest, where the document has none.
    pub fn suggested_by(name: &str) -> Option<Self> {
        const PREFIXES: [(&str, Kind); 11] = [
            ("wifi", Kind::Wifi),
            ("wl", Kind::Wifi),
            ("lte", Kind::Cellular),
            ("ww", Kind::Cellular),
            ("5g", Kind::Cellular),
            ("cell", Kind::Cellular),
            ("mobile", Kind::Cellular),
            ("sat", Kind::Satellite),
            ("starlink", Kind::Satellite),
            ("eth", Kind::Ethernet),
            ("en", Kind::Ethernet),
        ];
        let known = PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix));
        known.map(|(_, kind)| *kind)
    }
}

/// Steering mode of TS 23.501, 5.32.8, and `auto`.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// All accesses for bulk; small flows take the fastest.
    #[default]
    Auto,
    /// The first access alone; the next one only while the ones before it are unusable.
    ActiveStandby,
    /// The access with the smallest round trip; more only while it is full.
    SmallestDelay,
    /// With `weights`: fixed parts of the traffic. Without: by what each access delivers.
    LoadBalancing,
    /// The accesses in their order; the next one only while the ones before it are full.
    Priority,
    /// A copy on each of two accesses; the first that arrives counts.
    Redundant,
}

impl Mode {
    pub const ALL: [Self; 6] = [
        Self::Auto,
        Self::ActiveStandby,
        Self::SmallestDelay,
        Self::LoadBalancing,
        Self::Priority,
        Self::Redundant,
    ];

    pub fn name(self) -> &'static str {
        self.shape().name
    }

    /// The mode as data.
    pub const fn shape(self) -> Shape {
        let shape = Shape {
            name: "auto",
            sorted_by: SortedBy::Document,
            first_only: false,
            spills: false,
            takes_weights: false,
            copies: 1,
            gathers: true,
        };
        match self {
            Self::Auto => shape,
            Self::ActiveStandby => Shape {
                name: "active-standby",
                first_only: true,
                ..shape
            },
            Self::SmallestDelay => Shape {
                name: "smallest-delay",
                sorted_by: SortedBy::Delay,
                first_only: true,
                spills: true,
                ..shape
            },
            Self::LoadBalancing => Shape {
                name: "load-balancing",
                takes_weights: true,
                gathers: false,
                ..shape
            },
            Self::Priority => Shape {
                name: "priority",
                first_only: true,
                spills: true,
                ..shape
            },
            Self::Redundant => Shape {
                name: "redundant",
                sorted_by: SortedBy::Delay,
                copies: 2,
                gathers: false,
                ..shape
            },
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A mode as data: all properties in which modes differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub name: &'static str,
    pub sorted_by: SortedBy,
    /// Only the first access is active; otherwise all are.
    pub first_only: bool,
    /// The others are used while the ones before them are full; otherwise while those are unusable.
    pub spills: bool,
    pub takes_weights: bool,
    pub copies: u8,
    /// Small flows stay on the fastest active access.
    pub gathers: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortedBy {
    /// The order in `accesses` of the rule.
    Document,
    Delay,
}

/// One steering rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Unique in the document; shown wherever the rule decides.
    pub name: String,
    #[serde(default, rename = "match")]
    pub matches: Match,
    #[serde(default)]
    pub mode: Mode,
    /// Names or kinds, in order of preference. All others are forbidden. Empty: all are allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accesses: Vec<String>,
    /// Parts of the traffic for `load-balancing`, by name or kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, u32>,
    /// An access with a longer round trip stands by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_ms_max: Option<u32>,
    /// An access that loses more (0 to 1) stands by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_max: Option<f64>,
    /// Whether metered accesses are allowed.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub metered: bool,
    /// Whether roaming accesses are allowed.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub roaming: bool,
}

/// Conditions that all must hold; an empty list holds for every flow. Alerts are different: a rule
/// holds for them only if its `urgency` names them, and an access that it forbids stands by.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Match {
    /// `applications`, `applications-prompt`, `tun`, `vitals`, `alerts`, or `user:NAME` of SOCKS5.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub application: Vec<String>,
    /// `host`, `*.domain`, an address, or a prefix such as `10.0.0.0/8`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub destination: Vec<String>,
    /// A port, or a range such as `8000-8099`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub port: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub protocol: Vec<Protocol>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub urgency: Vec<Urgency>,
    /// Names of groups of the document; the gateway is in one of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub group: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Tcp,
    Udp,
    Ip,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Urgency {
    Alert,
    /// Vitals, and applications that somebody waits for.
    Prompt,
    Bulk,
}

impl Protocol {
    /// By its name in documents.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "tcp" => Some(Self::Tcp),
            "udp" => Some(Self::Udp),
            "ip" => Some(Self::Ip),
            _ => None,
        }
    }
}

impl Urgency {
    /// By its name in documents.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "alert" => Some(Self::Alert),
            "prompt" => Some(Self::Prompt),
            "bulk" => Some(Self::Bulk),
            _ => None,
        }
    }
}
