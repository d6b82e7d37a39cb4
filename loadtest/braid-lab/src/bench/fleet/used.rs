//! Processor time of this process and its descendants, by program.

use std::collections::BTreeMap;
use std::fs;

use super::super::line::TICKS_PER_S;
use crate::failure::Failure;

/// Seconds of processor time of this process and each descendant, by program.
pub(super) struct Used(pub(super) BTreeMap<String, f64>);

impl Used {
    pub(super) const FLEET: &'static str = "the fleet itself";

    pub(super) fn now() -> Result<Used, Failure> {
        let own = std::process::id();
        let mut found: BTreeMap<u32, (u32, String, f64)> = BTreeMap::new();
        for entry in fs::read_dir("/proc").map_err(Failure::other)?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|it| it.parse().ok()) else {
                continue;
            };
            // Ended since the folder was read: a foreign process, since ours stay.
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
                continue;
            };
            let command = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            found.extend(read(&stat, &command).map(|it| (pid, it)));
        }
        let mut used = BTreeMap::new();
        for (pid, (_, name, cpu_s)) in &found {
            let mut above = *pid;
            // Bounded: every step leads nearer to the first process.
            while above != own && above != 0 {
                above = found.get(&above).map_or(0, |(parent, _, _)| *parent);
            }
            if above == own {
                let name = if *pid == own { Used::FLEET } else { name };
                *used.entry(name.to_owned()).or_default() += cpu_s;
            }
        }
        Ok(Used(used))
    }

    pub(super) fn since(mut self, before: &Used) -> Used {
        for (part, cpu_s) in &mut self.0 {
            *cpu_s -= before.0.get(part).copied().unwrap_or_default();
        }
        self.0.retain(|_, cpu_s| *cpu_s > 0.0);
        self
    }

    pub(super) fn total_s(&self) -> f64 {
        self.0.values().sum()
    }

    pub(super) fn total_s_since(&self, before: &Used) -> f64 {
        self.total_s() - before.total_s()
    }

    /// Everything except the fleet.
    pub(super) fn behind(&self) -> impl Iterator<Item = (&String, f64)> {
        let of = self.0.iter().filter(|(part, _)| *part != Used::FLEET);
        of.map(|(part, cpu_s)| (part, *cpu_s))
    }
}

/// Parent, program, and processor seconds.
fn read(stat: &str, command: &str) -> Option<(u32, String, f64)> {
    // The name in parentheses may contain any character.
    let (head, rest) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once('(')?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    let noun = command.split('\0').nth(1).unwrap_or_default();
    let what = match name {
        "java" => "kafka",
        "postgres" => "timescaledb",
        _ if ["proxy", "ingest", "alerting"].contains(&noun) => noun,
        other => other,
    };
    Some((
        fields.get(1)?.parse().ok()?,
        what.to_owned(),
        ticks / TICKS_PER_S,
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_is_recognised_by_its_name_or_its_noun() {
        let stat = "7 (a) b) S 3 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0";
        let (parent, what, cpu_s) = read(stat, "braid\0proxy\0--log").unwrap();
        assert_eq!((parent, what.as_str()), (3, "proxy"));
        assert!((cpu_s - 2.0).abs() < 1e-9);
        let java = stat.replace("a) b", "java");
        assert_eq!(read(&java, "java\0-Xmx1g").unwrap().1, "kafka");
        assert!(read("7 (cut", "").is_none());
    }

    #[test]
    fn own_processor_time_is_found() {
        let used = Used::now().unwrap();
        assert!(used.0.contains_key(Used::FLEET), "{:?}", used.0);
    }
}
