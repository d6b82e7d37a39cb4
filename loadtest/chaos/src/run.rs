//! The IO shell: engines, processes, links, sensors and receiver, driven by the plan.
#![allow(
    clippy::disallowed_methods,
    reason = "the main thread drives the plan by the wall clock; it is no runtime thread"
)]

mod afterwards;
mod backup;
mod clock;
mod day_away;
mod disk;
mod found;
mod http;
mod links;
mod mailbox;
mod nurse;
mod receiver;
mod sensors;
mod site;
mod wearers;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rustix::process::Signal;
use store::{TimescaleOptions, TimescaleStore};
use testkit::{
    kafka::Cluster,
    timescale_server::{PASSWORD, ServerOptions, TimescaleServer},
};
use tokio::runtime::Runtime;

pub use found::FoundError;
pub use site::SiteError;

use self::{
    backup::Backup,
    clock::Clocks,
    disk::Disk,
    links::Accesses,
    mailbox::Mailbox,
    nurse::{Nurses, Outcome},
    receiver::Receiver,
    sensors::{Counts, Device},
    site::{Engines, Site},
    wearers::{Held, Moves},
};
use crate::{
    acknowledgements::{self, judge_reminders},
    dues::{self, Course},
    facts::{Found, Reading},
    oracle::Due,
    plan::{DISK_OF, Fault, Kind, Plan, STEP_S, Script, Target, WATCHES},
    proofs,
    readings::PER_SECOND,
    recovery,
    report::Report,
    scenario::{LINKS, METRICS, device_of},
    silences::{self, Watched},
    verdict::Verdict,
};

/// Seconds after the last reading within which everything must be stored.
pub const SETTLE_S: u32 = 150;
/// Pause before a good result is checked once more: duplicates may come late.
const CONFIRM: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_secs(3);
const PROGRESS: Duration = Duration::from_secs(10);
const TURN: Duration = Duration::from_millis(20);
/// Time from the end of the preparations to the first reading.
const LEAD_US: i64 = 1_000_000;
/// Offset between the series of consecutive patients.
const STAGGER_US: i64 = 110_000;
/// Ends of processes that are listed; further ones are dropped.
const ENDED_MAX: usize = 50;
const SECOND_US: i64 = 1_000_000;

#[derive(Debug)]
pub struct Options {
    pub braid: PathBuf,
    pub seed: u64,
    pub seconds: u32,
    /// Keeps the logs of a good run as well.
    pub keep: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Site(#[from] SiteError),
    #[error(transparent)]
    Found(#[from] FoundError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no Kafka on this machine: infra/dev/need.sh kafka installs it")]
    NoKafka,
    #[error("the store cannot be set up: {0}")]
    Migrate(String),
    #[error("{0} did not come back after a fault")]
    Engine(&'static str),
}

/// Must be called by the main thread: processes end with the thread that started them.
pub fn run(options: &Options) -> Result<Report, RunError> {
    let began = Instant::now();
    let plan = Plan::new(options.seed, options.seconds);
    eprintln!(
        "chaos: seed {}, {} s, {} brokers, {} faults on {} targets, {} of them while another lasts",
        plan.seed,
        plan.seconds,
        plan.brokers,
        plan.faults().len(),
        plan.lanes.len(),
        plan.overlapping(),
    );
    let folder =
        std::env::temp_dir().join(format!("braid-chaos-{}-{}", plan.seed, std::process::id()));
    fs::create_dir_all(&folder)?;
    let text = serde_json::to_string_pretty(&plan.faults()).map_err(io::Error::other)?;
    fs::write(folder.join("faults.json"), text)?;
    let judged = Stage::set_up(options, &plan, &folder).and_then(|stage| stage.play(&plan));
    match judged {
        Ok(played) => {
            let Played {
                verdict,
                ended,
                revoked,
                restored,
                days_away,
                not_played,
            } = played;
            let mut report = Report::new(&plan, verdict, ended, began.elapsed());
            report.revoked = revoked;
            report.restored = restored;
            report.days_away = days_away;
            report.not_played = not_played;
            if report.is_good() && !options.keep {
                fs::remove_dir_all(&folder)?;
            } else {
                report.folder = Some(folder);
            }
            Ok(report)
        }
        Err(error) => {
            eprintln!("chaos: logs are in {}", folder.display());
            Err(error)
        }
    }
}

/// A thread that kills and restarts one engine, since both take time.
struct EngineLane {
    orders: mpsc::SyncSender<bool>,
    thread: JoinHandle<()>,
}

impl EngineLane {
    /// `turn(true)` stops the engine, `turn(false)` starts it again, once for each stop.
    fn start(mut turn: impl FnMut(bool) + Send + 'static) -> EngineLane {
        let (orders, received) = mpsc::sync_channel(16);
        let thread = std::thread::spawn(move || {
            for down in received {
                turn(down);
            }
        });
        EngineLane { orders, thread }
    }

    fn order(&self, down: bool) {
        // A failed lane is detected at the end.
        let _ = self.orders.send(down);
    }

    fn end(self, what: &'static str) -> Result<(), RunError> {
        drop(self.orders);
        self.thread.join().map_err(|_| RunError::Engine(what))
    }
}

struct Played {
    verdict: Verdict,
    /// Events that the plan does not contain.
    ended: Vec<String>,
    revoked: usize,
    restored: usize,
    days_away: usize,
    not_played: Vec<String>,
}

struct Stage {
    site: Site,
    url: String,
    links: BTreeMap<&'static str, Arc<Accesses>>,
    receiver: Arc<Receiver>,
    mailbox: Arc<Mailbox>,
    broker: EngineLane,
    database: EngineLane,
    backup: Backup,
    folder: PathBuf,
    /// The last field: its users are dropped first.
    runtime: Runtime,
}

impl Stage {
    fn set_up(options: &Options, plan: &Plan, folder: &Path) -> Result<Stage, RunError> {
        let runtime = Runtime::new()?;
        let mut cluster = Cluster::start(plan.brokers, "").ok_or(RunError::NoKafka)?;
        let server = TimescaleServer::start(ServerOptions {
            durable: true,
            ..ServerOptions::default()
        });
        let url = runtime.block_on(server.database());
        let migrated = runtime.block_on(TimescaleStore::migrate(&TimescaleOptions::new(
            &url, PASSWORD,
        )));
        migrated.map_err(|error| RunError::Migrate(error.to_string()))?;
        let engines = Engines {
            bus: format!("kafka://{}", cluster.brokers().join(",")),
            store: url.clone(),
            brokers: plan.brokers,
        };
        let clocks = Clocks::build(folder, plan.behind_s());
        let mut site = Site::prepare(&options.braid, folder, &engines, clocks)?;
        let receiver = Arc::new(Receiver::default());
        runtime.block_on(Arc::clone(&receiver).serve(site.receiver))?;
        let mailbox = Arc::new(Mailbox::default());
        runtime.block_on(Arc::clone(&mailbox).serve(site.mailbox))?;
        let mut links = BTreeMap::new();
        for (gateway, address) in &site.to_proxy {
            let accesses = Arc::new(Accesses::new(plan.seed));
            runtime.block_on(Arc::clone(&accesses).serve(*address, site.proxy))?;
            links.insert(*gateway, accesses);
        }
        for name in site.names() {
            site.start(name)?;
        }
        for name in site.names() {
            runtime.block_on(site.wait_ready(name))?;
        }
        let brokers = plan.brokers;
        let mut node = 0;
        let broker = EngineLane::start(move |down| {
            if down {
                cluster.kill(node);
            } else {
                cluster.restart(node);
                node = (node + 1) % brokers;
            }
        });
        let backup = Backup::new(&url, server.folder(), folder);
        let database =
            EngineLane::start(move |down| if down { server.kill() } else { server.run() });
        let folder = folder.to_owned();
        Ok(Stage {
            site,
            url,
            links,
            receiver,
            mailbox,
            broker,
            database,
            backup,
            folder,
            runtime,
        })
    }

    fn play(mut self, plan: &Plan) -> Result<Played, RunError> {
        let start_us = clock::now_us() + LEAD_US;
        let series = readings(plan, start_us);
        let courses: Vec<Course> = series
            .iter()
            .flat_map(|(_, readings)| dues::courses(readings))
            .collect();
        let counts = Arc::new(Counts::default());
        let run = Duration::from_secs(plan.seconds.into());
        let deadline = Instant::now() + run + Duration::from_secs(SETTLE_S.into());
        let is_end = Arc::new(AtomicBool::new(false));
        let runtime = self.runtime.handle().clone();
        let _inside = runtime.enter();
        let nurses = self.nurses(plan, &courses, &is_end).start(deadline.into());
        let mut lines = Lines::default();
        for (script, readings) in series {
            let from_us = script
                .moved
                .map(|(second, _)| moved_us(plan, script, second, start_us));
            let device = lines.device(&self.site, script, readings, from_us, &counts);
            lines.devices.push(device.start(deadline.into()));
        }
        let Lines {
            radios,
            held,
            devices,
        } = lines;
        let watched = Watched {
            able_us: able_us(plan, clock::now_us()),
            until_us: start_us + i64::from(plan.seconds) * SECOND_US,
            moved_us: held
                .iter()
                .map(|(patient, it)| (*patient, it.from_us))
                .collect(),
            ahead_us: ahead_us(plan, clock::now_us()),
        };
        let began_us = clock::now_us();
        let mut moves = Moves::new(held, deadline);
        let mut ended = self.drive(plan, run, &radios, &mut moves, &counts)?;
        let mut accepted = Vec::new();
        let mut refused = Vec::new();
        for device in devices {
            let (mut readings, count) = runtime.block_on(device).map_err(io::Error::other)?;
            refused.extend(readings.split_off(count));
            accepted.append(&mut readings);
        }
        ended.extend(moves.end());
        is_end.store(true, Ordering::Relaxed);
        let people = runtime.block_on(nurses).map_err(io::Error::other)?;
        let due = dues::due(&courses, |patient, rule, since_us| {
            people.acknowledged_us(patient, rule, since_us)
        });
        ended.extend(people.unanswered.iter().cloned());
        let faults = plan.faults();
        let judge = |found: &Found| {
            let silences = silences::judge(&watched, &found.rows, &found.alerts, &found.calls);
            let mut verdict = Verdict::of(&accepted, &refused, &due, silences, found);
            verdict.add(judge_reminders(watched.until_us, &due, found));
            verdict.add(proofs::judge(&accepted, &found.rows, &found.proofs));
            verdict.recovery = recovery::of_faults(began_us, &faults, &found.rows);
            verdict.alerts_over = people.over;
            verdict
        };
        let mut verdict = self.settle(judge, deadline, &mut ended)?;
        let (mut revoked, mut restored, mut days_away) = (0, 0, 0);
        if verdict.is_good() {
            let is_copied = plan.has_restore() && self.copy(&mut ended);
            self.revoke(&mut ended)?;
            revoked = 1;
            verdict = self.restart_in_silence(&judge, &mut ended)?;
            if is_copied && verdict.is_good() {
                verdict = self.restore(&judge, &mut ended)?;
                restored = 1;
            }
            let is_possible = plan.has_day_away() && self.site.clocks.is_ok();
            if is_possible && verdict.is_good() && ended.is_empty() {
                self.day_away(&mut ended)?;
                days_away = 1;
            }
        }
        ended.extend(counts.refusals.lock().drain(..));
        self.keep_evidence(&verdict, &due, &accepted);
        let not_played = self.not_played();
        // Services first, so that none complains about engines that end.
        drop(self.site);
        self.broker.end("the broker")?;
        self.database.end("the database")?;
        Ok(Played {
            verdict,
            ended,
            revoked,
            restored,
            days_away,
            not_played,
        })
    }

    /// The people who acknowledge. Their numbers are apart from those of the plan, so that a change
    /// here changes no fault.
    fn nurses(&self, plan: &Plan, courses: &[Course], is_end: &Arc<AtomicBool>) -> Nurses {
        let mut random = ChaCha8Rng::seed_from_u64(!plan.seed);
        Nurses {
            page: self.site.page,
            receiver: Arc::clone(&self.receiver),
            wishes: acknowledgements::wishes(&mut random, courses, plan.longest_us()),
            is_end: Arc::clone(is_end),
        }
    }

    /// The faults that this machine could not play.
    fn not_played(&self) -> Vec<String> {
        let disk = self.site.disk.as_ref().err();
        let disk = disk.map(|reason| format!("full disks, which need root: {reason}"));
        let clock = self.site.clocks.as_ref().err();
        let clock = clock.map(|reason| format!("steps of a clock, which need cc: {reason}"));
        disk.into_iter().chain(clock).collect()
    }

    /// Executes the faults, then waits until the last reading is accepted. Returns the events that
    /// the plan does not contain.
    fn drive(
        &mut self,
        plan: &Plan,
        run: Duration,
        radios: &BTreeMap<&'static str, Arc<AtomicBool>>,
        moves: &mut Moves,
        counts: &Counts,
    ) -> Result<Vec<String>, RunError> {
        let began = Instant::now();
        let mut turns: Vec<(u32, bool, &Fault)> = plan
            .faults()
            .into_iter()
            .flat_map(|fault| [(fault.at_ms, true, fault), (fault.end_ms(), false, fault)])
            .collect();
        turns.sort_by_key(|(at_ms, is_begin, _)| (*at_ms, *is_begin));
        let mut turns = turns.into_iter().peekable();
        let (mut on, mut seen) = (0_usize, 0_usize);
        let mut ended = Vec::new();
        let mut next_progress = Duration::ZERO;
        while began.elapsed() < run {
            let elapsed_ms = began.elapsed().as_millis();
            while let Some((_, is_begin, fault)) =
                turns.next_if(|turn| u128::from(turn.0) <= elapsed_ms)
            {
                self.turn(fault, is_begin, radios, moves)?;
                (on, seen) = if is_begin {
                    (on + 1, seen + 1)
                } else {
                    (on - 1, seen)
                };
            }
            self.start_what_ended(&mut ended)?;
            if began.elapsed() >= next_progress {
                next_progress += PROGRESS;
                eprintln!(
                    "chaos: {:>4} s  faults {seen}, {on} at the moment  readings accepted {}  webhook calls {}",
                    began.elapsed().as_secs(),
                    counts.accepted.load(Ordering::Relaxed),
                    self.receiver.calls.lock().len(),
                );
            }
            std::thread::sleep(TURN);
        }
        Ok(ended)
    }

    fn turn(
        &mut self,
        fault: &Fault,
        is_begin: bool,
        radios: &BTreeMap<&'static str, Arc<AtomicBool>>,
        moves: &mut Moves,
    ) -> Result<(), RunError> {
        match (&fault.target, fault.kind) {
            (Target::Process(name), Kind::Pause) => {
                let signal = if is_begin { Signal::STOP } else { Signal::CONT };
                self.site.signal(name, signal);
            }
            (Target::Process(name), Kind::Restart) if is_begin => self.site.terminate(name),
            (Target::Process(name), Kind::Restart) => self.site.start_again(name)?,
            (Target::Process(name), _) if is_begin => self.site.kill(name),
            (Target::Process(name), _) => self.site.start(name)?,
            (Target::Broker, _) => self.broker.order(is_begin),
            (Target::Database, _) => self.database.order(is_begin),
            (Target::Link { gateway, link }, _) => self.cut(gateway, *link..=*link, is_begin),
            (Target::Network { gateway }, _) => self.cut(gateway, 0..=LINKS.len() - 1, is_begin),
            (Target::Receiver, _) => self.receiver.is_away.store(is_begin, Ordering::Relaxed),
            (Target::Rules { tenant }, _) if is_begin => self.site.put_rules_again(tenant),
            (Target::Rules { .. }, _) => {}
            (Target::Wearer { patient }, _) if is_begin => moves.begin(patient, &self.site),
            (Target::Wearer { .. }, _) => {}
            (Target::Disk { .. }, _) => {
                if let Ok(disk) = &mut self.site.disk {
                    disk.fill(is_begin);
                }
            }
            (Target::Clock { process }, kind) => {
                let shift_s = match kind {
                    Kind::Behind => -STEP_S,
                    _ => STEP_S,
                };
                if let Ok(clocks) = &self.site.clocks {
                    clocks.step(process, if is_begin { shift_s } else { 0 })?;
                }
            }
            (Target::Mailbox, _) => self.mailbox.is_away.store(is_begin, Ordering::Relaxed),
            (Target::Radio { patient }, _) => {
                if let Some(radio) = radios.get(patient) {
                    radio.store(is_begin, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    fn cut(&self, gateway: &str, links: std::ops::RangeInclusive<usize>, is_begin: bool) {
        if let Some(accesses) = self.links.get(gateway) {
            links.for_each(|link| accesses.cut(link, is_begin));
        }
    }

    /// Restarts ended processes like an orchestrator. No process may end by itself, but a gateway
    /// that starts on a full disk, so the run has failed; its rest may show more.
    fn start_what_ended(&mut self, ended: &mut Vec<String>) -> Result<(), RunError> {
        for (name, text) in self.site.ended() {
            let disk = self.site.disk.as_ref();
            let is_excused = name == DISK_OF && disk.is_ok_and(Disk::hinders_start);
            if !is_excused && ended.len() < ENDED_MAX {
                ended.push(text);
            }
            self.site.start(name)?;
        }
        Ok(())
    }

    fn settle(
        &mut self,
        judge: impl Fn(&Found) -> Verdict,
        deadline: Instant,
        ended: &mut Vec<String>,
    ) -> Result<Verdict, RunError> {
        let mut was_good = false;
        let mut last = None;
        let began = Instant::now();
        let mut next_progress = Duration::ZERO;
        loop {
            self.start_what_ended(ended)?;
            match self.found() {
                Ok(found) => {
                    let verdict = judge(&found);
                    if verdict.is_good() && was_good || Instant::now() > deadline {
                        return Ok(verdict);
                    }
                    was_good = verdict.is_good();
                    if began.elapsed() >= next_progress {
                        next_progress += PROGRESS;
                        say_settling(&verdict);
                    }
                    last = Some(verdict);
                }
                Err(error) if Instant::now() > deadline => return last.ok_or(error.into()),
                Err(_) => {}
            }
            std::thread::sleep(if was_good { CONFIRM } else { LOOK });
        }
    }

    fn found(&self) -> Result<Found, FoundError> {
        self.runtime.block_on(async {
            let rows = found::rows(&self.url).await?;
            let alerts = found::alerts(&self.url).await?;
            let proofs = found::proofs(&self.url).await?;
            Ok(Found {
                rows,
                alerts,
                calls: self.receiver.calls.lock().clone(),
                letters: self.mailbox.letters.lock().clone(),
                proofs,
            })
        })
    }

    /// The database is gone after the run. The folder keeps the differences and, of a failed run,
    /// the transitions, the due alerts and the readings that explain them.
    fn keep_evidence(&self, verdict: &Verdict, due: &[Due], accepted: &[Reading]) {
        let mut files = vec![("differences.txt", verdict.listed.join("\n"))];
        if !verdict.is_good() {
            let transitions = self.runtime.block_on(found::transitions(&self.url));
            let transitions = transitions.unwrap_or_else(|error| error.to_string());
            let due = due.iter().map(|due| format!("{due:?}\n")).collect();
            let readings = accepted.iter().map(|it| format!("{it:?}\n")).collect();
            files.extend([
                ("transitions.txt", transitions),
                ("due.txt", due),
                ("readings.txt", readings),
            ]);
        }
        for (name, text) in files {
            if let Err(error) = fs::write(self.folder.join(name), text) {
                eprintln!("chaos: {}: {error}", self.folder.display());
            }
        }
    }
}

fn say_settling(verdict: &Verdict) {
    eprintln!(
        "chaos: settling  {} of {} readings stored  {} of {} alerts raised  {} differences",
        verdict.readings_stored,
        verdict.readings_accepted,
        verdict.alerts_raised,
        verdict.alerts_due,
        verdict.counts.values().sum::<usize>(),
    );
}

/// The devices, and what the plan does to them.
#[derive(Default)]
struct Lines {
    radios: BTreeMap<&'static str, Arc<AtomicBool>>,
    held: BTreeMap<&'static str, Held>,
    devices: Vec<tokio::task::JoinHandle<(Vec<Reading>, usize)>>,
}

impl Lines {
    /// `from_us`: when the device gets its next wearer.
    fn device(
        &mut self,
        site: &Site,
        script: &Script,
        readings: Vec<Reading>,
        from_us: Option<i64>,
        counts: &Arc<Counts>,
    ) -> Device {
        let is_away = Arc::new(AtomicBool::new(false));
        let is_held = Arc::new(AtomicBool::new(false));
        self.radios.insert(script.patient, Arc::clone(&is_away));
        if let (Some((_, next)), Some(from_us)) = (script.moved, from_us) {
            let held = Held {
                next,
                from_us,
                is_held: Arc::clone(&is_held),
            };
            self.held.insert(script.patient, held);
        }
        Device {
            device: device_of(script.patient),
            gateway: site.sensors[script.gateway],
            readings,
            is_away,
            is_held,
            counts: Arc::clone(counts),
        }
    }
}

/// Time of the first reading of a device.
fn first_us(plan: &Plan, script: &Script, start_us: i64) -> i64 {
    let place = plan
        .scripts
        .iter()
        .position(|it| it.patient == script.patient);
    start_us + STAGGER_US * place.unwrap_or_default() as i64
}

/// When the next wearer has the device: a whole second, as `braid register` takes it.
fn moved_us(plan: &Plan, script: &Script, second: u32, start_us: i64) -> i64 {
    let exact_us = first_us(plan, script, start_us) + i64::from(second) * SECOND_US;
    exact_us.div_euclid(SECOND_US) * SECOND_US
}

/// Every reading of the plan, by device and time.
fn readings(plan: &Plan, start_us: i64) -> Vec<(&Script, Vec<Reading>)> {
    let step_us = SECOND_US / i64::from(PER_SECOND);
    let of =
        |script: &Script| {
            let first_us = first_us(plan, script, start_us);
            let mut readings = Vec::new();
            for ((_, metric, _), values) in METRICS.iter().zip(&script.series) {
                let worn = (0..).zip(values).filter_map(|(second, value)| {
                    let patient = script.wearer(second)?;
                    Some((second, patient, value))
                });
                readings.extend((1..).zip(worn).map(|(number, (second, patient, value))| {
                    Reading {
                        patient,
                        metric,
                        number,
                        time_us: first_us + step_us * i64::from(second),
                        value: *value,
                    }
                }));
            }
            // Stable: the readings of one second stay in the order of the metrics.
            readings.sort_by_key(|reading| reading.time_us);
            readings
        };
    plan.scripts
        .iter()
        .map(|script| (script, of(script)))
        .collect()
}

impl Outcome {
    fn acknowledged_us(&self, patient: &str, rule: &str, since_us: i64) -> Option<i64> {
        let of = |it: &&acknowledgements::Acknowledgement| {
            (it.patient.as_str(), it.rule, it.since_us) == (patient, rule, since_us)
        };
        self.accepted.iter().find(of).map(|it| it.answered_us)
    }
}

/// The intervals in which silence could be judged, of a run whose faults count from `began_us`.
fn able_us(plan: &Plan, began_us: i64) -> Vec<(i64, i64)> {
    at_us(began_us, plan.able_to_watch_ms().into_iter())
}

/// The intervals in which the clock of a watch is ahead.
fn ahead_us(plan: &Plan, began_us: i64) -> Vec<(i64, i64)> {
    let faults = plan.lanes.iter().flatten();
    let ahead = faults.filter(|fault| {
        fault.kind == Kind::Ahead
            && matches!(fault.target, Target::Clock { process } if WATCHES.contains(&process))
    });
    at_us(began_us, ahead.map(|fault| (fault.at_ms, fault.end_ms())))
}

/// Intervals of a plan as times.
fn at_us(began_us: i64, ms: impl Iterator<Item = (u32, u32)>) -> Vec<(i64, i64)> {
    let to_us = |at_ms: u32| began_us + i64::from(at_ms) * 1_000;
    ms.map(|(from_ms, to_ms)| (to_us(from_ms), to_us(to_ms)))
        .collect()
}
