//! The six services as separate processes on the embedded engines of one data directory.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use service_kit::tls::{IdentityFiles, authority::LocalAuthority};

use crate::program::{Program, free_port, run};

pub const NOUNS: [&str; 6] = [
    "path-telemetry",
    "ingest",
    "alerting",
    "proxy",
    "gateway",
    "dashboard",
];

pub struct Separate {
    pub data: PathBuf,
    logs: PathBuf,
    extra: Vec<String>,
    /// Flags of another bus than the one in the data directory.
    pub bus: Vec<String>,
    store: Vec<String>,
    pub ports: Ports,
    /// Envoy's address for gateways, instead of ingest and path-telemetry.
    pub front: Option<SocketAddr>,
    /// The gateway's address of the proxy, if a relay stands between them.
    pub to_proxy: Option<SocketAddr>,
    /// Variables of the services that are started from now on.
    pub environment: Vec<(String, String)>,
    programs: Vec<(&'static str, Program)>,
}

pub struct Ports {
    pub ingest: SocketAddr,
    pub alerting: SocketAddr,
    pub path_telemetry: SocketAddr,
    pub proxy: SocketAddr,
    pub sensors: SocketAddr,
    pub page: SocketAddr,
    /// In the order of `NOUNS`.
    admin: [SocketAddr; NOUNS.len()],
}

impl Ports {
    pub fn admin(&self, noun: &str) -> SocketAddr {
        let at = NOUNS.iter().position(|known| *known == noun).unwrap();
        self.admin[at]
    }
}

impl Separate {
    /// Issues identities and enters `devices` into the register, without starting a service.
    /// `extra` are flags for every service.
    pub fn prepare(dir: &Path, devices: &[String], extra: &[&str]) -> Separate {
        Separate::prepare_on(dir, devices, extra, &[])
    }

    /// The same with flags of another store than the one in the data directory.
    pub fn prepare_on(dir: &Path, devices: &[String], extra: &[&str], store: &[&str]) -> Separate {
        let data = dir.join("data");
        let logs = dir.join("logs");
        std::fs::create_dir_all(&logs).unwrap();
        let data_flag = data.to_str().unwrap();
        for noun in NOUNS.iter().filter(|noun| **noun != "gateway") {
            succeed(&["identity", "issue", "service", noun, "--data", data_flag]);
        }
        succeed(&["identity", "issue", "gateway", "gw-1", "--data", data_flag]);
        for device in devices {
            let patient = format!("wearer-of-{device}");
            let entry = [
                "register",
                "--create",
                "--device",
                device,
                "--gateway",
                "gw-1",
                "--patient",
                &patient,
                "--data",
                data_flag,
            ];
            succeed(&[&entry, store].concat());
        }
        Separate {
            data,
            logs,
            extra: extra.iter().map(|flag| (*flag).to_owned()).collect(),
            bus: Vec::new(),
            store: store.iter().map(|flag| (*flag).to_owned()).collect(),
            ports: Ports {
                ingest: free_port(),
                alerting: free_port(),
                path_telemetry: free_port(),
                proxy: free_port(),
                sensors: free_port(),
                page: free_port(),
                admin: NOUNS.map(|_| free_port()),
            },
            front: None,
            to_proxy: None,
            environment: Vec::new(),
            programs: Vec::new(),
        }
    }

    pub fn sensors(&self) -> SocketAddr {
        self.ports.sensors
    }

    /// An authority for gateways that every service trusts, in a folder like the dashboard's. Must
    /// be called before a service is started.
    pub fn authority_folder(&self) -> PathBuf {
        let folder = self.data.with_file_name("authority-folder");
        let identities = self.data.join("identities");
        let all = LocalAuthority::open_or_create(&identities).unwrap();
        let gateways = LocalAuthority::open_or_create_for_gateways(&folder).unwrap();
        std::fs::copy(all.ca_file(), folder.join("ca.pem")).unwrap();
        let believed = IdentityFiles::in_dir(&identities, "ingest");
        all.introduce(&gateways, &believed).unwrap();
        folder
    }

    pub fn page(&self) -> SocketAddr {
        self.ports.page
    }

    pub fn start(&mut self, noun: &'static str) {
        self.start_with(noun, &[]);
    }

    /// With additional flags.
    pub fn start_with(&mut self, noun: &'static str, own: &[&str]) {
        let program = self.launch(noun, noun, own);
        self.programs.push((noun, program));
    }

    /// A second instance of a service, on other ports; it ends when it is dropped.
    pub fn another(&self, noun: &str) -> Program {
        self.another_with(noun, &[])
    }

    pub fn another_with(&self, noun: &str, own: &[&str]) -> Program {
        self.another_at(noun, (free_port(), free_port()), own)
    }

    /// The addresses of its listener and its health.
    pub fn another_at(
        &self,
        noun: &str,
        (listen, admin): (SocketAddr, SocketAddr),
        own: &[&str],
    ) -> Program {
        let listen = format!("--listen={listen}");
        let admin = format!("--admin={admin}");
        let own = [&[listen.as_str(), admin.as_str()], own].concat();
        self.launch(noun, &format!("{noun}-another"), &own)
    }

    /// A further gateway of another name and tenant; it ends when it is dropped. Returns its
    /// address for sensors.
    pub fn gateway_of(&self, tenant: &str, id: &str) -> (Program, SocketAddr) {
        let data = self.data.to_str().unwrap();
        succeed(&[
            "identity", "issue", "gateway", id, "--tenant", tenant, "--data", data,
        ]);
        let (sensors, identities) = (free_port(), self.data.join("identities"));
        let own = [
            format!("--listen={sensors}"),
            format!("--admin={}", free_port()),
            format!("--cert={}", identities.join(format!("{id}.pem")).display()),
            format!("--key={}", identities.join(format!("{id}.key")).display()),
            format!("--data-dir={}", self.data.join(id).display()),
        ];
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        (self.launch("gateway", id, &own), sensors)
    }

    /// `own` overrides the flags of the service's first instance.
    fn launch(&self, noun: &str, log: &str, own: &[&str]) -> Program {
        let identities = self.data.join("identities");
        let name = if noun == "gateway" { "gw-1" } else { noun };
        let file = |name: String| identities.join(name).to_str().unwrap().to_owned();
        let engine = format!("sqlite:{}", self.data.display());
        let ports = &self.ports;
        let mut args = vec![
            noun.to_owned(),
            format!("--cert={}", file(format!("{name}.pem"))),
            format!("--key={}", file(format!("{name}.key"))),
            format!("--ca={}", file("ca.pem".to_owned())),
            format!("--admin={}", ports.admin(noun)),
        ];
        let devices = |own: SocketAddr| self.front.unwrap_or(own);
        if self.front.is_some() {
            match noun {
                "ingest" | "path-telemetry" => args.push("--front=envoy".to_owned()),
                "dashboard" => {
                    args.extend(["--tls=true", "--trust-forwarded-for=true"].map(str::to_owned));
                }
                _ => {}
            }
        }
        args.extend(self.extra.iter().cloned());
        let mut on_engines = if self.store.is_empty() {
            vec![format!("--store={engine}")]
        } else {
            self.store.clone()
        };
        if self.bus.is_empty() {
            on_engines.push(format!("--bus={engine}"));
        } else {
            on_engines.extend(self.bus.iter().cloned());
        }
        match noun {
            "ingest" => args.extend(
                [format!("--listen={}", ports.ingest)]
                    .into_iter()
                    .chain(on_engines),
            ),
            "alerting" => args.extend(
                [format!("--listen={}", ports.alerting)]
                    .into_iter()
                    .chain(on_engines),
            ),
            "path-telemetry" => {
                args.extend(
                    [format!("--listen={}", ports.path_telemetry)]
                        .into_iter()
                        .chain(on_engines),
                );
            }
            "dashboard" => args.extend(
                [
                    format!("--listen={}", ports.page),
                    format!("--alerting-url=https://{}", ports.alerting),
                ]
                .into_iter()
                .chain(on_engines),
            ),
            "proxy" => args.extend([
                format!("--listen={}", ports.proxy),
                format!(
                    "--allow={},{}",
                    devices(ports.ingest),
                    devices(ports.path_telemetry)
                ),
                format!("--path-telemetry=https://{}", ports.path_telemetry),
            ]),
            "gateway" => args.extend([
                format!("--listen={}", ports.sensors),
                format!("--data-dir={}", self.data.join("gw-1").display()),
                format!("--proxy={}", self.to_proxy.unwrap_or(ports.proxy)),
                format!("--ingest=https://{}", devices(ports.ingest)),
                format!("--path-telemetry=https://{}", devices(ports.path_telemetry)),
                "--interface=wifi=127.0.1.200".to_owned(),
                "--interface=lte=127.0.2.200".to_owned(),
            ]),
            other => panic!("{other} is no service"),
        }
        let name_of = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
        let given: Vec<String> = own.iter().map(|flag| name_of(flag)).collect();
        args.retain(|flag| !given.contains(&name_of(flag)));
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        args.extend(own);
        Program::start_in(&self.logs, log, &args, &self.environment)
    }

    pub fn kill(&mut self, noun: &str) {
        let at = self
            .programs
            .iter()
            .position(|(running, _)| *running == noun)
            .unwrap();
        let (_, mut program) = self.programs.remove(at);
        assert!(
            program.is_running(),
            "{noun} had ended by itself:\n{}",
            program.log()
        );
        program.kill();
    }

    /// A regular end: they drain and leave their groups.
    pub fn stop_all(&mut self) {
        for (_, program) in &self.programs {
            program.interrupt();
        }
        for (_, mut program) in self.programs.drain(..) {
            program.wait(crate::program::PATIENCE);
        }
    }

    /// Waits for a service that ends by itself; returns its exit code and its log.
    pub fn failure(&mut self, noun: &str) -> (Option<i32>, String) {
        let at = self.programs.iter().position(|(name, _)| *name == noun);
        let (_, mut program) = self.programs.remove(at.unwrap());
        let status = program.wait(crate::program::PATIENCE);
        (status.code(), program.log())
    }

    pub fn assert_all_running(&mut self) {
        assert_eq!(self.programs.len(), NOUNS.len());
        for (noun, program) in &mut self.programs {
            assert!(program.is_running(), "{noun} has ended:\n{}", program.log());
        }
    }
}

fn succeed(args: &[&str]) {
    let (code, _, error) = run(args);
    assert_eq!(code, 0, "braid {}: {error}", args.join(" "));
}
