//! `docs/reference/doors.md` against the code: every door has a row, and every bound that a row
//! names exists.
//!
//! Doors are found where they are made: sockets, devices and error queues by the calls that open
//! them, and RPCs in the proto files. HTTP routes and resources of the proxy are found by their
//! paths. Programs beside Braid are found in the compose files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

const PAGE: &str = "docs/reference/doors.md";
const COLUMNS: usize = 6;

/// Calls that make a listening socket, or a datagram socket that others send to. The last three
/// open a port of redirected connections, a TUN device, and the kernel's reports of ICMP.
const BINDING: [&str; 12] = [
    "TcpListener::bind(",
    "UnixListener::bind(",
    "UdpSocket::bind(",
    "TunnelServer::bind(",
    "grpc::bind(",
    " bind(config.",
    "Association::bind(",
    "UnixDatagram::bind(",
    "QuerySocket::bind(",
    "TcpRedirect::start(",
    "TunDevice::open(",
    "sockopt::Ipv4RecvErr",
];

/// Files that bind for another file, and the file in the row of that socket.
const ON_BEHALF: [(&str, &str); 2] = [
    // Passed to `from_applications/dns.rs`.
    (
        "services/shared/host-network/src/dns_redirect.rs",
        "services/gateway/src/from_applications/dns.rs",
    ),
    // The function that all services call.
    (
        "services/shared/service-kit/src/grpc/serve.rs",
        "services/shared/service-kit/src/admin.rs",
    ),
];

/// Test beds and figures, which are no services, and a command that makes a device and reads no
/// packet of it.
const NO_DOORS: [&str; 2] = ["services/braid/src/tun.rs", "services/shared/testkit"];

/// Images of the compose files that are Braid's own or emulate links.
const OWN_IMAGES: [&str; 2] = ["${BRAID_IMAGE}", "${NETLAB_IMAGE}"];

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("two above").to_path_buf()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file with this ending below a folder, as a path from the root and its text.
fn files(below: &str, ending: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root().join(below)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{below}: {e}")) {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && name != "node_modules" && name != "web" {
                folders.push(path);
            } else if name.ends_with(ending) {
                let from_root = path.strip_prefix(root()).expect("below the root");
                found.insert(from_root.display().to_string(), read(&path));
            }
        }
    }
    found
}

/// Sources of services, without their tests.
fn sources() -> BTreeMap<String, String> {
    let mut sources = files("services", ".rs");
    sources.extend(files("proto/src", ".rs"));
    let is_test = |path: &str| {
        let file = path.ends_with("_tests.rs") || path.ends_with("/tests.rs");
        file || path.contains("/tests/")
    };
    sources.retain(|path, _| path.contains("/src/") && !is_test(path));
    for text in sources.values_mut() {
        let tests = text.find("#[cfg(test)]").unwrap_or(text.len());
        text.truncate(tests);
    }
    sources
}

/// Cells of every row of the page, by the text of the row's first cell.
fn rows() -> Vec<Vec<String>> {
    let page = read(&root().join(PAGE));
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let cells = rows.map(|row| {
        let row = row.trim_matches('|');
        row.split('|').map(|cell| cell.trim().to_owned()).collect()
    });
    cells
        .filter(|row: &Vec<String>| row.first().is_none_or(|door| door != "door"))
        .collect()
}

/// Texts between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Each text between two marks.
fn between<'a>(text: &'a str, begin: &str, end: char) -> Vec<&'a str> {
    let parts = text.split(begin).skip(1);
    parts.filter_map(|part| part.split(end).next()).collect()
}

/// Programs beside Braid that an installation starts, by the names of their compose services.
fn programs() -> BTreeSet<String> {
    let mut programs = BTreeSet::new();
    for text in files("compose", ".yml").values() {
        let mut service = "";
        for line in text.lines() {
            let name = line.strip_prefix("  ").and_then(|it| it.strip_suffix(':'));
            service = name.filter(|it| !it.starts_with(' ')).unwrap_or(service);
            if let Some(image) = line.strip_prefix("    image: ")
                && !OWN_IMAGES.contains(&image)
            {
                programs.insert(service.to_owned());
            }
        }
    }
    programs
}

fn doors() -> BTreeSet<String> {
    let mut doors = programs();
    for (path, text) in sources() {
        if NO_DOORS.iter().any(|none| path.starts_with(none)) {
            continue;
        }
        for route in between(&text, ".route(\"", '"') {
            doors.insert(route.to_owned());
        }
        for resource in between(&text, "\"/.well-known/", '"') {
            // A complete template stands for its prefix.
            let resource = resource.trim_end_matches("*/*/");
            doors.insert(format!("/.well-known/{resource}"));
        }
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        if code
            .into_iter()
            .any(|line| BINDING.iter().any(|call| line.contains(call)))
        {
            doors.insert(path);
        }
    }
    for (file, on_behalf) in ON_BEHALF {
        if doors.remove(file) {
            doors.insert(on_behalf.to_owned());
        }
    }
    for (path, text) in files("proto/braid", ".proto") {
        let package = between(&text, "\npackage ", ';');
        let package = package
            .first()
            .unwrap_or_else(|| panic!("{path}: no package"));
        for service in text.split("\nservice ").skip(1) {
            let name = service.split(' ').next().expect("a name");
            let body = service.split("\n}").next().expect("a body");
            for method in between(body, "\n  rpc ", '(') {
                doors.insert(format!("{package}.{name}/{method}"));
            }
        }
    }
    doors
}

#[test]
fn every_door_has_a_row() {
    let rows = rows();
    let named: BTreeSet<&str> = rows.iter().flat_map(|row| quoted(&row[0])).collect();
    let doors = doors();
    assert!(doors.len() > 60, "{} doors only: {doors:?}", doors.len());
    for engine in ["kafka", "timescaledb", "envoy", "grafana"] {
        assert!(doors.contains(engine), "no {engine} in the compose files");
    }
    let without: Vec<&String> = doors
        .iter()
        .filter(|door| !named.contains(door.as_str()))
        .collect();
    assert!(without.is_empty(), "{PAGE} has no row for {without:#?}");
    let gone: Vec<&&str> = named
        .iter()
        .filter(|name| name.contains('/') && !name.contains('*') && !doors.contains(**name))
        .collect();
    assert!(
        gone.is_empty(),
        "{PAGE} has rows for what is no door: {gone:#?}"
    );
}

#[test]
fn every_row_names_its_clients_and_four_bounds() {
    let mut found = Vec::new();
    let mut before: Option<Vec<String>> = None;
    for row in rows() {
        if row.len() != COLUMNS {
            found.push(format!("{}: {} cells", row[0], row.len()));
            continue;
        }
        for (place, cell) in row.iter().enumerate().skip(1) {
            let is_said = match cell.as_str() {
                "as above" => before.is_some(),
                cell if place == 1 => !cell.is_empty(),
                cell => {
                    cell.starts_with("none: ")
                        || cell.starts_with("by ")
                        || quoted(cell).any(|it| it.contains("::") || it.starts_with("--"))
                }
            };
            if !is_said {
                found.push(format!(
                    "{}: {cell:?} names no bound and gives no reason",
                    row[0]
                ));
            }
        }
        before = Some(row);
    }
    assert!(found.is_empty(), "{PAGE}: {found:#?}");
}

/// The files in which `crate::module::CONSTANT` may stand.
fn homes(name: &str) -> Option<(Vec<String>, &str)> {
    let mut parts: Vec<&str> = name.split("::").collect();
    let constant = parts.pop()?;
    let (crate_name, modules) = parts.split_first()?;
    let folder = crate_name.replace('_', "-");
    let module = if modules.is_empty() {
        "lib".to_owned()
    } else {
        modules.join("/")
    };
    let sources = if *crate_name == "contracts" {
        vec!["proto/src".to_owned()]
    } else {
        vec![
            format!("services/{folder}/src"),
            format!("services/shared/{folder}/src"),
        ]
    };
    let homes = sources
        .iter()
        .map(|sources| format!("{sources}/{module}.rs"));
    Some((homes.collect(), constant))
}

#[test]
fn every_bound_that_a_row_names_is_in_the_code() {
    let sources = sources();
    let mut found = Vec::new();
    let mut bounds = 0;
    for row in rows() {
        for name in row.iter().skip(2).flat_map(|cell| quoted(cell)) {
            bounds += 1;
            let exists = if let Some(flag) = name.strip_prefix("--") {
                let field = format!("pub {}:", flag.replace('-', "_"));
                let configs = sources.iter().filter(|(path, _)| path.contains("config"));
                configs.into_iter().any(|(_, text)| text.contains(&field))
            } else {
                homes(name).is_some_and(|(homes, constant)| {
                    let begin = format!("const {constant}:");
                    let homes = homes.iter().filter_map(|home| sources.get(home));
                    homes.into_iter().any(|text| text.contains(&begin))
                })
            };
            if !exists {
                found.push(format!("{}: `{name}`", row[0]));
            }
        }
    }
    assert!(bounds > 100, "{bounds} bounds only");
    assert!(
        found.is_empty(),
        "{PAGE} names what is not in the code: {found:#?}"
    );
}

/// Files beside the edges that name a generated server or client, and why.
const SERVED_ELSEWHERE: [(&str, &str); 1] = [(
    "services/alerting/src/lib.rs",
    "puts the service on its listener",
)];

#[test]
fn a_file_that_names_a_generated_server_or_client_is_an_edge() {
    const OUTSIDE: [&str; 3] = ["services/braid/", "services/shared/", "proto/"];
    let sources = sources();
    let mut found = Vec::new();
    let mut seen = 0;
    for (file, text) in &sources {
        if OUTSIDE.iter().any(|outside| file.starts_with(outside)) {
            continue;
        }
        let is_named = text.lines().any(|line| {
            let names = ["_service_server::", "_service_client::"];
            !line.trim_start().starts_with("//") && names.iter().any(|name| line.contains(name))
        });
        let is_edge = file
            .split('/')
            .skip(3)
            .any(|part| part.starts_with("from_") || part.starts_with("to_"));
        let is_listed = SERVED_ELSEWHERE.iter().any(|(listed, _)| listed == file);
        seen += usize::from(is_named && is_edge);
        if is_named && !is_edge && !is_listed {
            found.push(format!(
                "{file} serves or calls, and is no from_x.rs or to_y.rs"
            ));
        }
        if is_listed && (is_edge || !is_named) {
            found.push(format!("{file} needs no entry in SERVED_ELSEWHERE"));
        }
    }
    for (file, _) in SERVED_ELSEWHERE {
        if !sources.contains_key(file) {
            found.push(format!("{file} stands in SERVED_ELSEWHERE and is gone"));
        }
    }
    assert!(seen >= 8, "only {seen} edges name a server or client");
    assert!(found.is_empty(), "edges own their handlers: {found:#?}");
}
