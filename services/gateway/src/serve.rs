//! Serves sensors: what they send goes by rules and journals to ingest.

mod carry;
mod journals;
mod sealed;

use std::{sync::Arc, time::Duration};

use contracts::vitals::EdgeAlert;
use service_kit::{CheckHandle, Context};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
};

pub(crate) use carry::{carry, without_sensors};
pub(crate) use journals::Journals;
use sealed::Sealed;

use crate::{
    Config, RunError,
    alarms::Alarms,
    carers::Newest,
    clock::{self, CoreClock, Moment},
    drain::UploadTasks,
    edge_rules::at_start::{self, AtStart},
    from_carers::Carers,
    from_ingest::{self, Follower},
    from_sensors::{self, Tokens},
    intake::{EARLY_WAITING_MAX, Intake},
    journal::{Directory, Journal},
    open_alerts::{AlertsFile, OpenAlerts},
    reserve::Reserve,
    resources::Resources,
    revocation::Revocation,
    to_ingest::{Courier, DeadLetters, FromMemory, Options},
    to_local_alarm,
    to_path_telemetry::{InJournals, JournalsWaiting},
    to_proxy::Uplink,
};

/// The resources that serving the sensors uses.
pub(crate) struct Surroundings {
    gateway: String,
    uplink: Arc<dyn Uplink>,
    waiting: JournalsWaiting,
    alarms: Alarms,
    freshness: watch::Sender<Option<Duration>>,
}

impl From<&Resources> for Surroundings {
    fn from(resources: &Resources) -> Self {
        Self {
            gateway: resources.gateway.clone(),
            uplink: Arc::clone(&resources.uplink),
            waiting: resources.journals.clone(),
            alarms: resources.alarms.clone(),
            freshness: resources.freshness.clone(),
        }
    }
}

/// Serves until shutdown is requested and what was accepted has had its last attempt to reach
/// ingest.
pub(crate) async fn with_sensors(
    config: Config,
    surroundings: Surroundings,
    context: &Context,
) -> Result<(), RunError> {
    journals::keep_private(&config)?;
    let sealed = Sealed::open(&config).await?;
    let AtStart {
        rules,
        file,
        in_force,
        states,
        reserve,
        open_alerts: (open_alerts, alerts_file),
    } = at_start::open(
        &config,
        (&surroundings.gateway, &sealed.keys),
        context.health(),
    )
    .await?;
    let listener = from_sensors::bind(&config).await?;
    let journals = Journals::open(&config, (&reserve, &sealed.keys), context).await?;
    let (vitals, alerts) = (journals.vitals.clone(), journals.alerts.clone());
    show_waiting(&surroundings, vitals.clone(), alerts.clone());
    let (follower, answers) = Follower::new();
    let (following, kept) = (follower.following(), follower.kept());
    let core = Arc::new(CoreClock::default());
    let urgent = Arc::<Notify>::default();
    let couriers = Couriers {
        config: &config,
        surroundings: &surroundings,
        core: &core,
        revocation: &sealed.revocation,
        dead_letters: Arc::new(DeadLetters::new(
            config.data_dir.join("rejected.jsonl"),
            sealed.keys.clone(),
            context.health().warning("rejected"),
        )),
        context,
    };
    let (early, alerts_early) = mpsc::channel(EARLY_WAITING_MAX);
    let couriers = couriers.start(&journals, follower, &urgent, alerts_early);

    let newest = Newest::default();
    let gateway = surroundings.gateway.clone();
    let journals_shown = [vitals.clone(), alerts.clone()];
    let intake = Intake::new(surroundings.gateway, vitals, alerts, rules);
    let intake = intake.showing(open_alerts.clone(), newest.clone());
    let intake = intake.hurrying(urgent).sending_early(early);
    let intake = intake.with_core(Arc::clone(&core));
    let intake = intake.while_following(following);
    let intake = intake.unless(sealed.revocation.clone());
    let intake = intake.with_alarms(surroundings.alarms.clone());
    let intake = Arc::new(intake.with_states(states).with_reserve(reserve.clone()));
    sealed.destroy_when_revoked(journals_shown.clone(), newest.clone(), context);
    let carers = Arc::new(Carers::new(
        (Arc::clone(&intake), alerts_file.clone(), newest),
        (Arc::clone(&surroundings.uplink), journals_shown),
        (context.health().clone(), context.shutdown().clone()),
        (gateway, Duration::from_millis(config.freshness_ms)),
    ));
    tell_people_here(&config, (&open_alerts, &alerts_file), &carers, context)?;
    let from_memory = FromMemory {
        intake: Arc::clone(&intake),
        uplink: surroundings.uplink,
        url: config.ingest.clone(),
        clock: Moment::now,
    };
    let (tasks, health, shutdown) = (context.tasks(), context.health(), context.shutdown());
    let from_memory = tasks.spawn(from_memory.run(shutdown.clone()));
    keep_storing(&intake, (reserve, core), context);
    tasks.spawn(from_ingest::keep(
        answers,
        in_force,
        (file, kept),
        Arc::clone(&intake),
        surroundings.alarms,
        health.warning("rules"),
    ));

    let mut uploading = UploadTasks {
        couriers,
        from_memory,
        journals,
    };
    let tokens = Tokens {
        sensor: config.sensor_token.clone(),
        carer: config.carer_token.clone(),
    };
    let sensors = from_sensors::serve(listener, intake, carers, tokens, context);
    let served = tokio::select! {
        served = sensors => served.map_err(RunError::from),
        failed = uploading.failure() => Err(failed),
    };
    context.shutdown().request();
    uploading.drain().await?;
    alerts_file.close(&open_alerts).await;
    served
}

/// Starts what keeps space for alerts, what stores the alerts that the disk had refused, and what
/// checks the clock.
fn keep_storing(
    intake: &Arc<Intake<Directory>>,
    (reserve, core): (Reserve<Directory>, Arc<CoreClock>),
    context: &Context,
) {
    let (tasks, health, shutdown) = (context.tasks(), context.health(), context.shutdown());
    let checked = health.warning("clock");
    tasks.spawn(clock::watch(Moment::now, core, checked, shutdown.clone()));
    tasks.spawn(reserve.keep(health.check("disk"), shutdown.clone()));
    let (intake, shutdown) = (Arc::clone(intake), shutdown.clone());
    let warning = health.warning("alerts-in-memory");
    tasks.spawn(async move { intake.try_again(warning, shutdown).await });
}

fn show_waiting(
    surroundings: &Surroundings,
    vitals: Journal<Directory>,
    alerts: Journal<Directory>,
) {
    surroundings.waiting.open(move || InJournals {
        waiting: vitals.waiting() + alerts.waiting(),
        filled_permille: vitals.filled_permille().max(alerts.filled_permille()),
    });
}

/// Starts what keeps the list of open alerts, what looks whether the core hears the gateway, and
/// the alarms in the building.
fn tell_people_here(
    config: &Config,
    (open_alerts, file): (&OpenAlerts, &AlertsFile<Directory>),
    carers: &Arc<Carers<Directory>>,
    context: &Context,
) -> Result<(), RunError> {
    let (tasks, shutdown) = (context.tasks(), context.shutdown());
    let follow = file.clone().follow(open_alerts.clone(), shutdown.clone());
    tasks.spawn(follow);
    tasks.spawn(Arc::clone(carers).watch());
    for channel in config.local_alarms()? {
        let warning = context.health().warning(channel.warning());
        tasks.spawn(to_local_alarm::run(
            channel,
            open_alerts.clone(),
            warning,
            shutdown.clone(),
        ));
    }
    Ok(())
}

/// The resources of both couriers.
struct Couriers<'a> {
    config: &'a Config,
    surroundings: &'a Surroundings,
    core: &'a Arc<CoreClock>,
    revocation: &'a Revocation,
    dead_letters: Arc<DeadLetters>,
    context: &'a Context,
}

impl Couriers<'_> {
    /// Alerts first: their connection is the first on a narrow network.
    fn start(
        &self,
        journals: &Journals,
        follower: Follower,
        urgent: &Arc<Notify>,
        early: mpsc::Receiver<Vec<EdgeAlert>>,
    ) -> [JoinHandle<()>; 2] {
        let check = |name| self.context.health().check(name);
        let alerts = self.courier(Options::ALERTS, &journals.alerts, check("alerts-uplink"));
        let vitals = Courier {
            rules: Some(follower),
            freshness: self.surroundings.freshness.subscribe(),
            urgent: Arc::clone(urgent),
            ..self.courier(
                self.config.vitals_options(),
                &journals.vitals,
                check("vitals-uplink"),
            )
        };
        // Vitals wait for the disk.
        let none = mpsc::channel(1).1;
        [(alerts, early), (vitals, none)].map(|(courier, early)| {
            let shutdown = self.context.shutdown().clone();
            self.context.tasks().spawn(courier.run(early, shutdown))
        })
    }

    fn courier(
        &self,
        options: Options,
        journal: &Journal<Directory>,
        check: CheckHandle,
    ) -> Courier<Directory> {
        Courier {
            options,
            journal: journal.clone(),
            uplink: Arc::clone(&self.surroundings.uplink),
            url: self.config.ingest.clone(),
            dead_letters: Arc::clone(&self.dead_letters),
            check,
            clock: Moment::now,
            core: Arc::clone(self.core),
            revocation: self.revocation.clone(),
            rules: None,
            // Alerts never wait.
            freshness: watch::Sender::default().subscribe(),
            alarmed: self.surroundings.alarms.watch(),
            urgent: Arc::default(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
