//! Reading a document, and refusing one that is wrong: where, why, and what would be right.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use calendar::Zone;

use super::document::{AccessTerms, Document, FORMAT, Kind, Mode, Rule, Urgency};
use super::flow::{port_range, prefix};

/// Rules of a document; a flow is matched against each rule.
pub(super) const RULES_MAX: usize = 256;
/// Accesses of a document, and of one rule; a document with more is refused.
pub(super) const ACCESSES_MAX: usize = 64;
/// Gateways with an entry of their own, and gateways of all groups together.
pub(super) const GATEWAYS_MAX: usize = 2_048;
/// Groups of a document; a document with more is refused.
const GROUPS_MAX: usize = 256;
const FRESHNESS_MS: RangeInclusive<u32> = 100..=60_000;
/// Entries of one list of a rule.
const LIST_MAX: usize = 256;
/// Longest text of a document that is read.
const TEXT_BYTES_MAX: usize = 256 << 10;
/// Longest name of a rule, access, application or group.
const NAME_CHARS_MAX: usize = 64;
/// Longest name of a host.
const HOST_BYTES_MAX: usize = 253;
/// Largest cap of an access, in gigabytes.
const CAP_GB_MAX: f64 = 1e6;
/// Highest price of a gigabyte, in the currency of the installation.
const PRICE_MAX: f64 = 1e6;
/// Largest weight of an access in a rule.
const WEIGHT_MAX: u32 = 1_000;

/// Why a document is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentError {
    /// The file, or where else it came from.
    pub source: String,
    /// 1 is the first; none where the text is not known.
    pub line: Option<usize>,
    /// For example `rule[0] "updates".weights`.
    pub field: String,
    pub reason: String,
    pub example: &'static str,
}

impl std::error::Error for DocumentError {}

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        write!(f, ": {}; for example: {}", self.reason, self.example)
    }
}

/// Before the source and the line are known.
struct Wrong {
    field: String,
    reason: String,
    example: &'static str,
    /// Which table of which name it is in.
    table: Option<(&'static str, usize)>,
}

type Checked = Result<(), Wrong>;

const WHOLE: &str = r#"[[rule]] name = "updates" mode = "active-standby" accesses = ["wifi"]"#;
const GROUP: &str = "[[group]] name = \"ambulances\" gateways = [\"gw-7\", \"amb-*\"]";

impl Document {
    /// Reads the form for people. `source` names the file in errors.
    pub fn from_toml(text: &str, source: &str) -> Result<Self, DocumentError> {
        Self::read(text, source, |text| {
            toml::from_str(text).map_err(|error| {
                let line = error.span().map(|span| line_of(text, span.start));
                (line, error.message().to_owned())
            })
        })
    }

    /// Reads the form for machines.
    pub fn from_json(text: &str, source: &str) -> Result<Self, DocumentError> {
        Self::read(text, source, |text| {
            serde_json::from_str(text).map_err(|error| (Some(error.line()), error.to_string()))
        })
    }

    /// Either form: JSON begins with a brace.
    pub fn from_text(text: &str, source: &str) -> Result<Self, DocumentError> {
        if text.trim_start().starts_with('{') {
            Self::from_json(text, source)
        } else {
            Self::from_toml(text, source)
        }
    }

    /// In one line.
    pub fn to_json(&self) -> String {
        // Cannot fail: keys are strings, and numbers are finite.
        serde_json::to_string(self).unwrap_or_default()
    }

    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    fn read(
        text: &str,
        source: &str,
        parse: impl Fn(&str) -> Result<Self, (Option<usize>, String)>,
    ) -> Result<Self, DocumentError> {
        let refuse = |line, field: String, reason, example| DocumentError {
            source: source.to_owned(),
            line,
            field,
            reason,
            example,
        };
        if text.len() > TEXT_BYTES_MAX {
            let reason = format!("has {} bytes, more than {TEXT_BYTES_MAX}", text.len());
            return Err(refuse(None, String::new(), reason, WHOLE));
        }
        let document =
            parse(text).map_err(|(line, reason)| refuse(line, String::new(), reason, WHOLE))?;
        document.check().map_err(|wrong| {
            let line = wrong
                .table
                .and_then(|(name, index)| table_line(text, name, index));
            refuse(line, wrong.field, wrong.reason, wrong.example)
        })?;
        Ok(document)
    }

    fn check(&self) -> Checked {
        if self.format != FORMAT {
            return wrong(
                "format",
                format!("{} is not known", self.format),
                "format = 1",
            );
        }
        if let Some(ms) = self.freshness_ms {
            check_freshness(ms)?;
        }
        bounded("gateway", self.gateways.len(), GATEWAYS_MAX)?;
        let mut named = BTreeSet::new();
        for (index, terms) in self.gateways.iter().enumerate() {
            let within = |wrong: Wrong| wrong.inside("gateway", index, Some(&terms.name));
            word("name", &terms.name, "name = \"gw-7\"").map_err(within)?;
            check_freshness(terms.freshness_ms).map_err(within)?;
            if !named.insert(&terms.name) {
                let reason = "an entry before it is of the same gateway".to_owned();
                return wrong("name", reason, "name = \"gw-7\"").map_err(within);
            }
        }
        self.check_groups()?;
        bounded("access", self.accesses.len(), ACCESSES_MAX)?;
        bounded("rule", self.rules.len(), RULES_MAX)?;
        for (index, terms) in self.accesses.iter().enumerate() {
            let within = |wrong: Wrong| wrong.inside("access", index, terms.name.as_deref());
            check_access(terms).map_err(within)?;
            let same = |other: &AccessTerms| {
                other.name == terms.name && { terms.name.is_some() || other.kind == terms.kind }
            };
            if self.accesses.iter().take(index).any(same) {
                let reason = "an entry before it is of the same access".to_owned();
                return wrong("name", reason, "[[access]] name = \"lte\"").map_err(within);
            }
        }
        for (index, rule) in self.rules.iter().enumerate() {
            let within = |wrong: Wrong| wrong.inside("rule", index, Some(&rule.name));
            check_rule(rule).map_err(within)?;
            self.check_names_of_groups(rule).map_err(within)?;
            if self.rules.iter().take(index).any(|it| it.name == rule.name) {
                let reason = "a rule before it has the same name".to_owned();
                return wrong("name", reason, "name = \"updates\"").map_err(within);
            }
        }
        Ok(())
    }
}

impl Document {
    fn check_groups(&self) -> Checked {
        bounded("group", self.groups.len(), GROUPS_MAX)?;
        let members: usize = self.groups.iter().map(|it| it.gateways.len()).sum();
        bounded("group.gateways", members, GATEWAYS_MAX)?;
        for (index, group) in self.groups.iter().enumerate() {
            let within = |wrong: Wrong| wrong.inside("group", index, Some(&group.name));
            word("name", &group.name, GROUP).map_err(within)?;
            if self
                .groups
                .iter()
                .take(index)
                .any(|it| it.name == group.name)
            {
                let reason = "a group before it has the same name".to_owned();
                return wrong("name", reason, GROUP).map_err(within);
            }
            if group.gateways.is_empty() {
                let reason = "names no gateway".to_owned();
                return wrong("gateways", reason, GROUP).map_err(within);
            }
            for gateway in &group.gateways {
                // A star alone stands for all gateways.
                let beginning = gateway.strip_suffix('*').unwrap_or(gateway);
                if gateway != "*" {
                    word("gateways", beginning, GROUP).map_err(within)?;
                }
            }
        }
        Ok(())
    }

    /// A rule of a group that does not exist would hold nowhere, and nobody would notice.
    fn check_names_of_groups(&self, rule: &Rule) -> Checked {
        let is_known = |name: &String| self.groups.iter().any(|group| group.name == *name);
        match rule.matches.group.iter().find(|name| !is_known(name)) {
            None => Ok(()),
            Some(name) => wrong(
                "match.group",
                format!("the document has no [[group]] {name:?}"),
                GROUP,
            ),
        }
    }
}

impl Wrong {
    fn inside(self, table: &'static str, index: usize, name: Option<&str>) -> Self {
        let name = name.map_or_else(String::new, |name| format!(" {name:?}"));
        Self {
            field: format!("{table}[{index}]{name}.{}", self.field),
            table: Some((table, index)),
            ..self
        }
    }
}

fn wrong(field: &str, reason: String, example: &'static str) -> Checked {
    Err(Wrong {
        field: field.to_owned(),
        reason,
        example,
        table: None,
    })
}

fn bounded(field: &str, count: usize, max: usize) -> Checked {
    if count <= max {
        return Ok(());
    }
    wrong(
        field,
        format!("has {count} entries, more than {max}"),
        WHOLE,
    )
}

fn is_word(word: &str) -> bool {
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '@');
    (1..=NAME_CHARS_MAX).contains(&word.chars().count()) && word.chars().all(allowed)
}

fn word(field: &str, word: &str, example: &'static str) -> Checked {
    if is_word(word) {
        return Ok(());
    }
    let reason =
        format!("{word:?} is not 1 to {NAME_CHARS_MAX} letters, digits, '-', '_', '.', ':' or '@'");
    wrong(field, reason, example)
}

fn check_freshness(ms: u32) -> Checked {
    if FRESHNESS_MS.contains(&ms) {
        return Ok(());
    }
    let (min, max) = (FRESHNESS_MS.start(), FRESHNESS_MS.end());
    let reason = format!("{ms} is not within {min} to {max}");
    wrong("freshness_ms", reason, "freshness_ms = 1000")
}

fn check_access(terms: &AccessTerms) -> Checked {
    match &terms.name {
        Some(name) => word("name", name, "name = \"lte\"")?,
        None if terms.kind.is_none() => {
            return wrong(
                "name",
                "has neither name nor kind".to_owned(),
                "name = \"lte\"",
            );
        }
        None => {}
    }
    let within = |value: f64, max: f64| (0.0..=max).contains(&value);
    if !within(terms.price_per_gb, PRICE_MAX) {
        let reason = format!("{} is not within 0 to {PRICE_MAX}", terms.price_per_gb);
        return wrong("price_per_gb", reason, "price_per_gb = 2.5");
    }
    for (key, cap, example) in [
        ("cap_gb", terms.cap_gb, "cap_gb = 5"),
        (
            "cap_gb_per_week",
            terms.cap_gb_per_week,
            "cap_gb_per_week = 2",
        ),
        (
            "cap_gb_per_day",
            terms.cap_gb_per_day,
            "cap_gb_per_day = 0.5",
        ),
    ] {
        if let Some(cap) = cap.filter(|cap| !within(*cap, CAP_GB_MAX)) {
            let reason = format!("{cap} is not within 0 to {CAP_GB_MAX}");
            return wrong(key, reason, example);
        }
    }
    if !(1..=31).contains(&terms.reset_day) {
        let reason = format!("{} is not within 1 to 31", terms.reset_day);
        return wrong("reset_day", reason, "reset_day = 1");
    }
    if let Some(name) = terms.time_zone.as_deref()
        && Zone::parse(name).is_none()
    {
        let reason = format!("{name:?} is not an IANA time zone");
        return wrong("time_zone", reason, "time_zone = \"Europe/Zurich\"");
    }
    Ok(())
}

fn check_rule(rule: &Rule) -> Checked {
    let has_control = rule.name.chars().any(char::is_control);
    if rule.name.trim().is_empty() || rule.name.chars().count() > NAME_CHARS_MAX || has_control {
        let reason =
            format!("is empty, longer than {NAME_CHARS_MAX} characters or has control characters");
        return wrong("name", reason, "name = \"updates\"");
    }
    bounded("accesses", rule.accesses.len(), ACCESSES_MAX)?;
    for (index, access) in rule.accesses.iter().enumerate() {
        word("accesses", access, "accesses = [\"wifi\", \"cellular\"]")?;
        if rule.accesses.iter().take(index).any(|it| it == access) {
            let reason = format!("{access:?} is named twice");
            return wrong("accesses", reason, "accesses = [\"wifi\", \"cellular\"]");
        }
    }
    check_weights(rule)?;
    if let Some(loss) = rule.loss_max.filter(|loss| !(0.0..=1.0).contains(loss)) {
        let reason = format!("{loss} is not within 0 to 1");
        return wrong("loss_max", reason, "loss_max = 0.05");
    }
    if rule.rtt_ms_max == Some(0) {
        let reason = "no access has a round trip of 0 ms".to_owned();
        return wrong("rtt_ms_max", reason, "rtt_ms_max = 150");
    }
    if rule.mode == Mode::Redundant && rule.matches.urgency.is_empty() {
        let reason = "mode redundant would send all bulk twice".to_owned();
        return wrong(
            "match.urgency",
            reason,
            "match = { urgency = [\"prompt\"] }",
        );
    }
    let alerts = rule.matches.urgency.contains(&Urgency::Alert);
    if alerts && rule.mode == Mode::ActiveStandby {
        let reason = "alerts never wait for one access to be found dead".to_owned();
        return wrong("mode", reason, "mode = \"redundant\"");
    }
    check_match(rule)
}

fn check_weights(rule: &Rule) -> Checked {
    const EXAMPLE: &str = "weights = { wifi = 70, cellular = 30 }";
    if rule.weights.is_empty() {
        return Ok(());
    }
    bounded("weights", rule.weights.len(), ACCESSES_MAX)?;
    if !rule.mode.shape().takes_weights {
        let reason = format!("mode {} takes none", rule.mode);
        return wrong("weights", reason, EXAMPLE);
    }
    for (access, weight) in &rule.weights {
        word("weights", access, EXAMPLE)?;
        if !(1..=WEIGHT_MAX).contains(weight) {
            let reason = format!("{access} = {weight} is not within 1 to {WEIGHT_MAX}");
            return wrong("weights", reason, EXAMPLE);
        }
        let named = rule.accesses.is_empty() || rule.accesses.contains(access);
        if !named {
            let reason = format!("{access:?} is not one of the rule's accesses");
            return wrong("weights", reason, EXAMPLE);
        }
    }
    Ok(())
}

fn check_match(rule: &Rule) -> Checked {
    let matches = &rule.matches;
    bounded("match.application", matches.application.len(), LIST_MAX)?;
    bounded("match.destination", matches.destination.len(), LIST_MAX)?;
    bounded("match.port", matches.port.len(), LIST_MAX)?;
    bounded("match.group", matches.group.len(), LIST_MAX)?;
    for application in &matches.application {
        const EXAMPLE: &str = "application = [\"tun\", \"user:backup\"]";
        word("match.application", application, EXAMPLE)?;
        let known = [
            "applications",
            "applications-prompt",
            "tun",
            "vitals",
            "alerts",
        ];
        let user = application.strip_prefix("user:");
        if !known.contains(&application.as_str()) && user.is_none_or(str::is_empty) {
            let reason = format!("{application:?} is none of {}, user:NAME", known.join(", "));
            return wrong("match.application", reason, EXAMPLE);
        }
    }
    for group in &matches.group {
        word("match.group", group, "group = [\"ambulances\"]")?;
    }
    for destination in &matches.destination {
        const EXAMPLE: &str = "destination = [\"*.example.org\", \"10.0.0.0/8\"]";
        if prefix(destination).is_some() {
            continue;
        }
        let host = destination.strip_prefix("*.").unwrap_or(destination);
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.chars().all(allowed) {
            let reason = format!("{destination:?} is no host, *.domain, address or prefix");
            return wrong("match.destination", reason, EXAMPLE);
        }
    }
    if let Some(port) = matches.port.iter().find(|it| port_range(it).is_none()) {
        let reason = format!("{port:?} is no port and no range of ports");
        return wrong("match.port", reason, "port = [\"443\", \"8000-8099\"]");
    }
    Ok(())
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    1 + before.filter(|byte| **byte == b'\n').count()
}

/// Where the table of this name and number begins. JSON has no such lines; the field is named.
fn table_line(text: &str, name: &str, index: usize) -> Option<usize> {
    let header = format!("[[{name}]]");
    let starts = text.lines().enumerate();
    let mut tables = starts.filter(|(_, line)| line.trim_start().starts_with(&header));
    tables.nth(index).map(|(line, _)| line + 1)
}

/// The terms of the access, and its kind.
impl Document {
    pub fn terms_of(&self, name: &str) -> (Option<&AccessTerms>, Option<Kind>) {
        let by_name = |terms: &&AccessTerms| terms.name.as_deref() == Some(name);
        let named = self.accesses.iter().find(by_name);
        let kind = named
            .and_then(|terms| terms.kind)
            .or_else(|| Kind::suggested_by(name));
        let of_kind = || {
            let mut entries = self.accesses.iter();
            entries.find(|terms| terms.name.is_none() && kind.is_some() && terms.kind == kind)
        };
        (named.or_else(of_kind), kind)
    }
}
