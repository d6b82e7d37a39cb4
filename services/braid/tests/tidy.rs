//! The rules of the house, checked on the tree itself. Each failure names the file and the rule.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const SERVICES: [&str; 7] = [
    "gateway",
    "proxy",
    "ingest",
    "alerting",
    "path-telemetry",
    "dashboard",
    "exchange",
];

/// The ends of the data path: no service of ours stands on the other side. `links` are the emulated
/// links of `braid up`.
const ENDS: [&str; 12] = [
    "sensors",
    "hospital",
    "carers",
    "local-alarm",
    "applications",
    "upstream",
    "bus",
    "store",
    "people",
    "browser",
    "links",
    "identity-provider",
];

/// Lines of a file before its tests; a longer file needs a reason in `LONG`.
const LINES_MAX: usize = 500;

/// Lines of a file in `LONG`; a shorter file must be struck from it.
const LINES_FEW: usize = 450;

/// Long files, with the reason why each is one file.
const LONG: [(&str, &str); 22] = [
    (
        "services/gateway/src/from_applications/dns.rs",
        "one door: the clients' sockets, the stream to the resolver, and the relay between them",
    ),
    (
        "loadtest/lab/src/host.rs",
        "one simulated host: its endpoint, its links and its clock are one event loop",
    ),
    (
        "loadtest/lab/src/world.rs",
        "one event loop over both ends, the links and the clock",
    ),
    (
        "services/alerting/src/rule_engines.rs",
        "one try of a batch: each method keeps the copies that take the try back",
    ),
    (
        "services/shared/vitals/tests/it/merge.rs",
        "one scene per way in which edge and core report the same stretches",
    ),
    (
        "services/alerting/src/rule_engines_tests.rs",
        "one scene per order of tries, takeovers and passing time",
    ),
    (
        "services/alerting/tests/it/alerting.rs",
        "one scene per failure that alerting meets, over one stage",
    ),
    (
        "services/alerting/tests/it/people.rs",
        "one scene per way in which people are told or not, over one stage",
    ),
    (
        "services/gateway/src/journal/log.rs",
        "one protocol with the disk: each step relies on the invariants of the one before",
    ),
    (
        "services/gateway/src/to_ingest/sender.rs",
        "one state machine: each event reads the windows that the others move",
    ),
    (
        "services/shared/tunnel/src/resume/line.rs",
        "one lock: application, companion and carrying stream share its state",
    ),
    (
        "services/shared/multipath/src/controller.rs",
        "one control loop, whose states read each other",
    ),
    (
        "services/shared/vitals/src/episodes.rs",
        "one merge: every fact of edge and core meets every state of an episode",
    ),
    (
        "services/shared/emulated-link/src/link.rs",
        "one link model: rate, queue, loss and delay act on one packet in turn",
    ),
    (
        "services/shared/vitals/src/engine.rs",
        "one engine: rules, trends and silence share one clock per patient",
    ),
    (
        "services/shared/vitals/tests/it/engine.rs",
        "one case per clause of the rules",
    ),
    (
        "services/shared/store/src/timescale/vitals.rs",
        "one write from plan to commit, and the questions that read its rows back",
    ),
    (
        "loadtest/chaos/src/run.rs",
        "one stage: engines, processes, links and receivers are driven by one plan",
    ),
    (
        "services/alerting/src/silence_watch/from_store_tests.rs",
        "one scene per way in which a silence begins, lasts and ends",
    ),
    (
        "services/alerting/src/to_people.rs",
        "one decision: consumer, timers and canary write notices by the same attempts",
    ),
    (
        "services/alerting/src/to_people/deliver.rs",
        "one worker: taking, sending and settling share the places of a channel",
    ),
    (
        "services/shared/store/src/conformance/notices.rs",
        "one check per promise of the notices, on every engine",
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("services/braid lies two folders below the root")
        .to_path_buf()
}

/// Every file that git tracks or would track, relative to the root.
fn files() -> Vec<String> {
    let out = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git is there: the tree came by it");
    let files: Vec<String> = String::from_utf8(out.stdout)
        .expect("paths are UTF-8")
        .lines()
        .filter(|f| root().join(f).is_file())
        .map(str::to_owned)
        .collect();
    assert!(files.len() > 50, "git lists {} files only", files.len());
    files
}

fn rust_files() -> Vec<String> {
    files().into_iter().filter(|f| f.ends_with(".rs")).collect()
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// The edges of a service: `to_proxy.rs` or the folder `to_proxy/` give `proxy`.
fn edges(service: &str, prefix: &str) -> BTreeSet<String> {
    fs::read_dir(root().join("services").join(service).join("src"))
        .unwrap_or_else(|e| panic!("services/{service}/src: {e}"))
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let stem = name.strip_suffix(".rs").unwrap_or(&name);
            if stem.ends_with("_tests") {
                return None;
            }
            Some(stem.strip_prefix(prefix)?.replace('_', "-"))
        })
        .collect()
}

fn refuse(rule: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

#[test]
fn every_way_out_meets_a_way_in() {
    let mut found = Vec::new();
    let mut seen = 0;
    for service in SERVICES {
        for to in edges(service, "to_") {
            seen += 1;
            let met = SERVICES.contains(&to.as_str()) && edges(&to, "from_").contains(service);
            if !ENDS.contains(&to.as_str()) && !met {
                found.push(format!(
                    "services/{service}/src/to_{to} meets no services/{to}/src/from_{service}"
                ));
            }
        }
        for from in edges(service, "from_") {
            seen += 1;
            // Data of a gateway for any service passes the proxy. An answer comes through the door
            // that the question went in by.
            let sends = |to: &str| edges(&from, "to_").contains(to);
            let answers =
                || edges(service, "to_").contains(&from) && edges(&from, "from_").contains(service);
            let met = SERVICES.contains(&from.as_str())
                && (sends(service) || sends("proxy") || answers());
            if !ENDS.contains(&from.as_str()) && !met {
                found.push(format!(
                    "services/{service}/src/from_{from} is met by no way out of {from}"
                ));
            }
        }
    }
    assert!(seen >= 15, "only {seen} edges found: has the tree moved?");
    refuse("an edge of the data path has one end only", found);
}

#[test]
fn every_service_has_a_short_readme() {
    let found = SERVICES
        .iter()
        .filter_map(|service| {
            let file = format!("services/{service}/README.md");
            match fs::read_to_string(root().join(&file)) {
                Err(e) => Some(format!("{file}: {e}")),
                Ok(text) if text.lines().count() > 60 => {
                    Some(format!("{file}: {} lines", text.lines().count()))
                }
                Ok(_) => None,
            }
        })
        .collect();
    refuse(
        "each service has a README of at most one screen (60 lines)",
        found,
    );
}

#[test]
fn every_service_has_its_chart_and_compose_entry_once_those_exist() {
    let mut found = Vec::new();
    for service in SERVICES {
        let chart = root().join("charts/braid/templates");
        if chart.is_dir() && !chart.join(service).is_dir() {
            found.push(format!("charts/braid/templates/{service}/ is missing"));
        }
        if root().join("docker-compose.yml").is_file() {
            let entry = format!("\n  {service}:\n");
            let named = files()
                .iter()
                .filter(|f| f.starts_with("compose/") || *f == "docker-compose.yml")
                .any(|f| read(f).contains(&entry));
            if !named {
                found.push(format!("no compose file has a service {service}"));
            }
        }
    }
    refuse("one noun everywhere", found);
}

#[test]
fn files_answer_one_question() {
    let mut found = Vec::new();
    for file in rust_files() {
        // Tests at the end of a file belong to its question.
        let lines = read(&file)
            .lines()
            .take_while(|line| !line.starts_with("#[cfg(test)]"))
            .count();
        let reason = LONG.iter().find(|(long, _)| *long == file);
        match reason {
            None if lines > LINES_MAX => {
                found.push(format!("{file}: {lines} lines and no reason in LONG"));
            }
            Some(_) if lines < LINES_FEW => {
                found.push(format!("{file}: {lines} lines, strike it from LONG"));
            }
            _ => {}
        }
    }
    for (file, _) in LONG {
        if !root().join(file).is_file() {
            found.push(format!("{file}: stands in LONG and is gone"));
        }
    }
    refuse(
        "a file of more than 500 lines has a reason in this test",
        found,
    );
}

#[test]
fn no_module_hides_in_mod_rs_and_none_is_called_common() {
    let found = files()
        .into_iter()
        .filter(|f| {
            let path = Path::new(f);
            f.ends_with("/mod.rs")
                || path
                    .iter()
                    .any(|p| p == "common" || p == "utils" || p == "helpers")
                || matches!(
                    path.file_stem().and_then(|s| s.to_str()),
                    Some("common" | "utils" | "util" | "helpers" | "misc")
                ) && f.ends_with(".rs")
        })
        .collect();
    refuse("a module is named by what it does", found);
}

#[test]
fn no_work_is_left_for_later() {
    // Composed here, so that this file does not find itself.
    let words = [
        ["TO", "DO"].concat(),
        ["FIX", "ME"].concat(),
        ["XX", "X"].concat(),
    ];
    let mut found = Vec::new();
    for file in files() {
        let code = [".rs", ".ts", ".sh", ".proto", ".mjs", ".css", ".toml"]
            .iter()
            .any(|e| file.ends_with(e));
        if !code || file.contains("/dist/") || file.contains("/gen/") {
            continue;
        }
        for (n, line) in read(&file).lines().enumerate() {
            if words
                .iter()
                .any(|w| line.split(|c: char| !c.is_alphanumeric()).any(|x| x == w))
            {
                found.push(format!("{file}:{}: {}", n + 1, line.trim()));
            }
        }
    }
    refuse("work is done, or it is an issue", found);
}

#[test]
fn nothing_names_the_machine_it_was_made_on() {
    let words = [["/wo", "rk/"].concat(), ["/ro", "ot/"].concat()];
    let mut found = Vec::new();
    for file in files() {
        let Ok(text) = fs::read_to_string(root().join(&file)) else {
            continue; // Not text: pictures, fonts.
        };
        for (n, line) in text.lines().enumerate() {
            if words.iter().any(|w| line.contains(w.as_str())) {
                found.push(format!("{file}:{}", n + 1));
            }
        }
    }
    refuse("paths of one machine mean nothing on another", found);
}

/// Equal sources give equal bytes wherever they lie, so a program looks for its sources at run
/// time.
#[test]
fn no_program_holds_the_path_it_was_compiled_at() {
    let words = ["env!(", "option_env!("].map(|it| [it, "\"CARGO_MANIFEST_DIR\""].concat());
    let mut found = Vec::new();
    for file in rust_files() {
        if file.contains("/tests/") {
            continue;
        }
        for (n, line) in read(&file).lines().enumerate() {
            if words.iter().any(|w| line.contains(w.as_str())) {
                found.push(format!("{file}:{}: {}", n + 1, line.trim()));
            }
        }
    }
    refuse("testkit::sources finds files of the sources", found);
}

#[test]
fn protocol_and_rule_logic_reads_no_clock_and_opens_no_socket() {
    const SANS_IO: [&str; 8] = [
        "multipath",
        "path-probe",
        "vitals",
        "clocks",
        "calendar",
        "access-plan",
        "data-budget",
        "emulated-link/src/link",
    ];
    const WORLD: [&str; 5] = [
        "Instant::now()",
        "SystemTime::now()",
        "std::net::UdpSocket",
        "tokio::",
        "std::fs",
    ];
    let mut found = Vec::new();
    let mut seen = 0;
    for file in rust_files() {
        let inside = SANS_IO
            .iter()
            .any(|c| file.starts_with(&format!("services/shared/{c}")));
        if !inside || file.contains("/tests/") || file.ends_with("_tests.rs") {
            continue;
        }
        seen += 1;
        let text = read(&file);
        // Tests at the end of a file may use a clock.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (n, line) in code.lines().enumerate() {
            let comment = line.trim_start().starts_with("//");
            if !comment && WORLD.iter().any(|w| line.contains(w)) {
                found.push(format!("{file}:{}: {}", n + 1, line.trim()));
            }
        }
    }
    assert!(seen >= 8, "only {seen} files found: has the tree moved?");
    refuse(
        "time and events come in, commands go out: nobody below the IO shell reads a clock",
        found,
    );
}

#[test]
fn links_of_documents_lead_somewhere() {
    /// The form of an anchor: small letters, digits and dashes.
    fn anchor(heading: &str) -> String {
        let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        let text: String = heading.to_lowercase().chars().filter(kept).collect();
        text.trim().replace(' ', "-")
    }
    let (mut found, mut seen) = (Vec::new(), 0);
    for file in files().into_iter().filter(|f| f.ends_with(".md")) {
        let folder = Path::new(&file).parent().expect("a file is in a folder");
        let text = read(&file);
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|it| it.split(')').next())
        {
            if link.contains(':') {
                continue;
            }
            seen += 1;
            let (path, section) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => Path::new(&file).to_path_buf(),
                path => folder.join(path),
            };
            let headings = fs::read_to_string(root().join(&target)).unwrap_or_default();
            let mut headings = headings.lines().filter(|line| line.starts_with('#'));
            let is_there = root().join(&target).exists();
            if !is_there
                || !section.is_empty()
                    && !headings.any(|it| anchor(it.trim_start_matches('#')) == section)
            {
                found.push(format!("{file}: {link}"));
            }
        }
    }
    assert!(seen > 10, "only {seen} links found");
    refuse("a link leads to a file and a section that there are", found);
}

/// An operator reads log lines without the source.
#[test]
fn log_lines_hold_no_debug_dumps() {
    let mut found = Vec::new();
    for file in rust_files() {
        let is_service = file.starts_with("services/") && file.contains("/src/");
        if !is_service {
            continue;
        }
        let text = read(&file);
        for level in ["info!(", "warn!(", "error!("] {
            for line in text.split(&format!("tracing::{level}")).skip(1) {
                let line = line.split(");").next().unwrap_or_default();
                // The fields before the text.
                let fields = line.split('"').next().unwrap_or_default();
                let is_dump = fields.starts_with('?') || fields.contains(" ?");
                if is_dump {
                    found.push(format!("{file}: tracing::{level}{}", fields.trim()));
                }
            }
        }
    }
    refuse(
        "a log line names what it shows in words, without `?`",
        found,
    );
}
