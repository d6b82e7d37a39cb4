//! The services as processes of the real binary, with their identities, register, rules, ports and
//! logs in one folder.

mod commands;
mod settings;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use testkit::{ports, timescale_server::PASSWORD};

use self::settings::{put_rules, without_settings};
use super::{clock::Clocks, disk::Disk, http, nurse};
use crate::{
    plan::{CLOCKS_OF, DISK_OF},
    scenario::{self, GATEWAYS, LINKS, SERVICES, SILENT_AFTER_S},
};

/// Longer than a run. Overlapping faults can keep a gateway away for more than the default. Each
/// alert that is due must reach the receiver all the same.
const BACKFILL_AFTER_S: u64 = 86_400;
const DATA: &str = "data";
/// Longest start of a gateway or service on a busy machine; then the run fails.
const READY_WITHIN: Duration = Duration::from_secs(90);
const ASK_EVERY: Duration = Duration::from_millis(200);
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Bytes at the end of a log that an error repeats.
const TAIL_BYTES: usize = 2_000;

#[derive(Debug, thiserror::Error)]
pub enum SiteError {
    #[error("{what}: {error}")]
    Io { what: String, error: io::Error },
    #[error("braid {command} failed: {said}")]
    Command { command: String, said: String },
    #[error("{name} is not ready after {} s: {said}\n{log}", READY_WITHIN.as_secs())]
    NotReady {
        name: &'static str,
        said: String,
        log: String,
    },
}

fn io_error(what: impl ToString) -> impl FnOnce(io::Error) -> SiteError {
    let what = what.to_string();
    move |error| SiteError::Io { what, error }
}

struct Process {
    args: Vec<String>,
    admin: SocketAddr,
    log: PathBuf,
    /// `None`: killed.
    child: Option<Child>,
    /// It was told to end.
    is_ending: bool,
}

pub(super) struct Site {
    braid: PathBuf,
    folder: PathBuf,
    processes: BTreeMap<&'static str, Process>,
    /// Address for sensors of each gateway, and its address of the proxy.
    pub sensors: BTreeMap<&'static str, SocketAddr>,
    pub to_proxy: BTreeMap<&'static str, SocketAddr>,
    pub proxy: SocketAddr,
    pub page: SocketAddr,
    pub receiver: SocketAddr,
    pub mailbox: SocketAddr,
    /// The arguments that put the rules of a tenant in force.
    rules_again: BTreeMap<&'static str, Vec<String>>,
    on_store: Vec<String>,
    /// The disk of the journal of [`DISK_OF`]. `Err`: why there is none.
    pub disk: Result<Disk, String>,
    /// The wall clocks of [`CLOCKS_OF`].
    pub clocks: Result<Clocks, String>,
}

pub(super) struct Engines {
    pub bus: String,
    pub store: String,
    pub brokers: usize,
}

impl Site {
    /// Issues identities, fills the register and puts the rules in force, without starting a
    /// process.
    pub fn prepare(
        braid: &Path,
        folder: &Path,
        engines: &Engines,
        clocks: Result<Clocks, String>,
    ) -> Result<Site, SiteError> {
        let reserve = || ports::reserve().map_err(io_error("no port is free"));
        let mut site = Site {
            braid: braid.to_owned(),
            folder: folder.to_owned(),
            processes: BTreeMap::new(),
            sensors: BTreeMap::new(),
            to_proxy: BTreeMap::new(),
            proxy: reserve()?,
            page: reserve()?,
            receiver: reserve()?,
            mailbox: reserve()?,
            rules_again: BTreeMap::new(),
            on_store: Vec::new(),
            disk: Disk::mount(&folder.join(DATA).join(DISK_OF)),
            clocks,
        };
        fs::create_dir_all(site.logs()).map_err(io_error(folder.display()))?;
        let rules = site.folder.join("rules.json");
        let document = scenario::rules_document().to_string();
        fs::write(&rules, document).map_err(io_error(rules.display()))?;
        site.issue_and_register(engines, &rules)?;
        let (ingest, alerting, path_telemetry) = (reserve()?, reserve()?, reserve()?);
        let page = site.page;
        let engine_flags = [
            format!("--bus={}", engines.bus),
            format!("--bus-replication={}", engines.brokers),
            format!("--bus-in-sync-min={}", engines.brokers.div_ceil(2)),
            format!("--store={}", engines.store),
            format!("--store-password={PASSWORD}"),
        ];
        for (name, noun) in SERVICES {
            let own = match name {
                "ingest" => vec![format!("--listen={ingest}")],
                "alerting" | "alerting-2" => vec![
                    format!(
                        "--listen={}",
                        if name == noun { alerting } else { reserve()? }
                    ),
                    format!("--webhook=http://{}/", site.receiver),
                    format!("--smtp=smtp-plain://{}", site.mailbox),
                    "--email-from=braid@example.org".to_owned(),
                    format!("--public-url=https://{page}"),
                    format!("--backfill-after-s={BACKFILL_AFTER_S}"),
                    format!("--silent-after-s={SILENT_AFTER_S}"),
                    format!("--rules={}", rules.display()),
                ],
                "path-telemetry" => vec![format!("--listen={path_telemetry}")],
                "dashboard" => vec![
                    format!("--listen={page}"),
                    format!("--alerting-url=https://{alerting}"),
                ],
                _ => vec![
                    format!("--listen={}", site.proxy),
                    format!("--allow={ingest},{path_telemetry}"),
                    format!("--path-telemetry=https://{path_telemetry}"),
                ],
            };
            let engines = if noun == "proxy" {
                &[][..]
            } else {
                &engine_flags
            };
            site.add(name, noun, noun, [&own[..], engines].concat())?;
        }
        for gateway in &GATEWAYS {
            let (sensors, to_proxy) = (reserve()?, reserve()?);
            site.sensors.insert(gateway.name, sensors);
            site.to_proxy.insert(gateway.name, to_proxy);
            let mut own = vec![
                format!("--listen={sensors}"),
                format!("--data-dir={}", site.data().join(gateway.name).display()),
                format!("--proxy={to_proxy}"),
                format!("--ingest=https://{ingest}"),
                format!("--path-telemetry=https://{path_telemetry}"),
                format!("--rules={}", rules.display()),
            ];
            own.extend(LINKS.map(|(name, address)| format!("--interface={name}={address}")));
            site.add(gateway.name, "gateway", gateway.name, own)?;
        }
        Ok(site)
    }

    pub fn logs(&self) -> PathBuf {
        self.folder.join("logs")
    }

    fn data(&self) -> PathBuf {
        self.folder.join(DATA)
    }

    fn issue_and_register(&mut self, engines: &Engines, rules: &Path) -> Result<(), SiteError> {
        let data = format!("--data={}", self.data().display());
        for (_, noun) in SERVICES.iter().filter(|(name, noun)| name == noun) {
            self.run(&["identity", "issue", "service", noun, &data])?;
        }
        let store = format!("--store={}", engines.store);
        let password = format!("--store-password={PASSWORD}");
        let on_store = [store.as_str(), password.as_str(), data.as_str()];
        self.on_store = on_store.iter().map(|it| (*it).to_owned()).collect();
        for gateway in &GATEWAYS {
            let tenant = format!("--tenant={}", gateway.tenant);
            self.run(&["identity", "issue", "gateway", gateway.name, &tenant, &data])?;
            for patient in gateway.patients {
                let device = scenario::device_of(patient);
                let entry = [
                    "register",
                    "--device",
                    &device,
                    "--gateway",
                    gateway.name,
                    "--patient",
                    patient,
                    "--create",
                    &tenant,
                ];
                self.run(&[&entry[..], &on_store].concat())?;
            }
        }
        let file = rules.display().to_string();
        let mut tenants: Vec<&'static str> =
            GATEWAYS.iter().map(|gateway| gateway.tenant).collect();
        tenants.dedup();
        for tenant in tenants {
            let put = put_rules(&file, tenant);
            self.run(&[&put[..], &on_store].concat())?;
            let put = [&put[..], &on_store].concat();
            let put = put.into_iter().map(str::to_owned).collect();
            self.rules_again.insert(tenant, put);
            let nurse = scenario::nurse(tenant);
            let password = format!("--password={}", nurse::PASSWORD);
            let put = [
                "accounts",
                "put",
                &nurse,
                "--role=clinician",
                &password,
                "--by=chaos",
                "--tenant",
                tenant,
            ];
            self.run(&[&put[..], &on_store].concat())?;
            let team = self.folder.join(format!("team-{tenant}.json"));
            let document = scenario::team_document(tenant).to_string();
            fs::write(&team, document).map_err(io_error(team.display()))?;
            let put = [
                "alerts",
                "team",
                "put",
                &team.display().to_string(),
                "--by=chaos",
                "--reason=a chaos run",
                "--tenant",
                tenant,
            ];
            self.run(&[&put[..], &on_store].concat())?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        name: &'static str,
        noun: &str,
        identity: &str,
        own: Vec<String>,
    ) -> Result<(), SiteError> {
        let admin = ports::reserve().map_err(io_error("no port is free"))?;
        let identities = self.data().join("identities");
        let file = |file: String| identities.join(file).display().to_string();
        let mut args = vec![
            noun.to_owned(),
            format!("--cert={}", file(format!("{identity}.pem"))),
            format!("--key={}", file(format!("{identity}.key"))),
            format!("--ca={}", file("ca.pem".to_owned())),
            format!("--admin={admin}"),
        ];
        args.extend(own);
        let log = self.logs().join(format!("{name}.log"));
        self.processes.insert(
            name,
            Process {
                args,
                admin,
                log,
                child: None,
                is_ending: false,
            },
        );
        Ok(())
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.processes.keys().copied().collect()
    }

    /// Must be called by a thread that lives as long as the process: the kernel kills a process
    /// with its starting thread.
    pub fn start(&mut self, name: &str) -> Result<(), SiteError> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(&self.braid);
        without_settings(&mut command);
        if let Ok(clocks) = &self.clocks
            && (clocks.is_behind() || CLOCKS_OF.contains(&name))
        {
            clocks.apply(name, &mut command).map_err(io_error(name))?;
        }
        let Some(process) = self.processes.get_mut(name) else {
            return Ok(());
        };
        let log = || File::options().create(true).append(true).open(&process.log);
        let (out, error) = (log(), log());
        command
            .args(&process.args)
            .stdin(Stdio::null())
            .stdout(out.map_err(io_error(process.log.display()))?)
            .stderr(error.map_err(io_error(process.log.display()))?);
        process.child = Some(command.spawn().map_err(io_error(name))?);
        process.is_ending = false;
        Ok(())
    }

    /// Sends SIGTERM to the process, as an upgrade does.
    pub fn terminate(&mut self, name: &str) {
        if let Some(process) = self.processes.get_mut(name) {
            process.is_ending = true;
        }
        self.signal(name, Signal::TERM);
    }

    /// Starts a process that was told to end. One that has not ended by now is killed, as an
    /// orchestrator does.
    pub fn start_again(&mut self, name: &str) -> Result<(), SiteError> {
        self.kill(name);
        self.start(name)
    }

    pub fn kill(&mut self, name: &str) {
        let child = self
            .processes
            .get_mut(name)
            .and_then(|process| process.child.take());
        if let Some(mut child) = child {
            // A process that has ended by itself is gone as well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn signal(&self, name: &str, signal: Signal) {
        let child = self
            .processes
            .get(name)
            .and_then(|process| process.child.as_ref());
        let pid = child
            .and_then(|child| i32::try_from(child.id()).ok())
            .and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // `ended` reports a process that has ended by itself.
            let _ = kill_process(pid, signal);
        }
    }

    /// Processes that have ended without having been killed, each once.
    pub fn ended(&mut self) -> Vec<(&'static str, String)> {
        let mut ended = Vec::new();
        for (name, process) in &mut self.processes {
            let status = process
                .child
                .as_mut()
                .and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = status {
                process.child = None;
                if process.is_ending && status.success() {
                    continue;
                }
                let how = if process.is_ending {
                    "was told to end"
                } else {
                    "ended by itself"
                };
                ended.push((*name, format!("{name} {how}: {status}")));
            }
        }
        ended
    }

    pub async fn wait_ready(&self, name: &'static str) -> Result<(), SiteError> {
        let Some(process) = self.processes.get(name) else {
            return Ok(());
        };
        let deadline = tokio::time::Instant::now() + READY_WITHIN;
        loop {
            let answer = http::request(process.admin, "GET", "/readyz", "", ANSWER_WITHIN).await;
            let said = match answer {
                Ok((200, _)) => return Ok(()),
                Ok((status, text)) => format!("{status} {text}"),
                Err(error) => error.to_string(),
            };
            if tokio::time::Instant::now() > deadline {
                let log = tail(&process.log);
                return Err(SiteError::NotReady { name, said, log });
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for name in self.names() {
            self.kill(name);
        }
        // The disk is unmounted after its gateway has ended.
    }
}

fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let from = text.len().saturating_sub(TAIL_BYTES);
    String::from_utf8_lossy(&text[from..]).into_owned()
}
