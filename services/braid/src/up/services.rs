//! The services of one process: started in order, watched, ended in stages.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use service_kit::path_table::PathTable;
use service_kit::{Context, Secret};
use tokio::sync::mpsc;

use super::config::UpConfig;
use super::first_start::Start;
use crate::engines::Engines;
use crate::process::Failure;

/// Time that the proxy waits for open tunnels.
const PROXY_DRAIN_MS: u64 = 300;
/// Outcomes that wait to be read; one is enough to end, and further ones are dropped.
const OUTCOMES_MAX: usize = 1;

/// Order in which services end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Patients and the page.
    Outside,
    Gateway,
    Core,
}

struct Running {
    context: Context,
    stage: Stage,
}

pub struct Services {
    process: Context,
    /// Bounded by the number of patients: each adds a gateway and itself.
    running: Arc<Mutex<Vec<Running>>>,
    outcomes: (mpsc::Sender<Failure>, mpsc::Receiver<Failure>),
}

impl Services {
    /// Recordings of paths are below `data`.
    pub fn new(process: Context, data: &Path) -> Services {
        let running = Arc::new(Mutex::new(Vec::new()));
        let members = running.clone();
        process.also(Arc::new(move || {
            let now = Instant::now();
            let members = contexts_of(&members);
            members.iter().flat_map(|it| it.wrong(now)).collect()
        }));
        let shown = running.clone();
        let table: PathTable = Arc::new(move |only| {
            let shown = shown.lock();
            // The proxy is in this process too, and would show each path once more.
            let gateways = shown.iter().filter(|it| it.context.noun() == "gateway");
            let tables = gateways.filter_map(|it| it.context.paths(only));
            tables.flat_map(|table| table.paths).collect()
        });
        process.record_paths(data.join("qlog"), Arc::clone(&table));
        process.show_paths(table);
        Services {
            process,
            running,
            outcomes: mpsc::channel(OUTCOMES_MAX),
        }
    }

    /// Runs a service until it ends; a service that ends by itself is a failure of the process.
    pub fn start<F>(
        &mut self,
        noun: &'static str,
        stage: Stage,
        run: impl FnOnce(Context) -> F,
    ) -> Context
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let context = Context::new(noun);
        self.running.lock().push(Running {
            context: context.clone(),
            stage,
        });
        let service = run(context.clone());
        let outcomes = self.outcomes.0.clone();
        tokio::spawn({
            let context = context.clone();
            async move {
                let outcome = service.await;
                let failure = match outcome {
                    Ok(()) if context.shutdown().is_requested() => None,
                    Ok(()) => Some(Failure::other(format!("{noun} ended by itself"))),
                    Err(failure) => Some(failure.of(noun)),
                };
                if let Some(failure) = failure {
                    // Full: another service's failure is ending the process already.
                    let _ = outcomes.try_send(failure);
                }
                // Last, so that a waiter for the end finds the reason.
                context.end();
            }
        });
        context
    }

    /// Lets this service say what is wrong in the others too.
    pub fn show_others(&self, context: &Context) {
        let (noun, running) = (context.noun(), self.running.clone());
        context.also(Arc::new(move || {
            let now = Instant::now();
            let others = contexts_of(&running).into_iter();
            let others = others.filter(|it| it.noun() != noun);
            others.flat_map(|it| it.own_wrong(now)).collect()
        }));
    }

    /// The address of a listener, or the reason for its absence.
    pub async fn address(&mut self, context: &Context, what: &str) -> Result<SocketAddr, Failure> {
        match context.address(what).await {
            Some(address) => Ok(address),
            None => Err(match self.outcomes.1.try_recv() {
                Ok(failure) => failure,
                Err(_) => Failure::other(format!("{} has no listener {what}", context.noun())),
            }),
        }
    }

    /// Waits for a requested end, or for the first service that ends by itself, which is a failure.
    pub async fn first_end(&mut self) -> Result<(), Failure> {
        tokio::select! {
            () = self.process.shutdown().requested() => Ok(()),
            failed = self.outcomes.1.recv() => match failed {
                Some(failure) => Err(failure),
                None => Ok(()),
            },
        }
    }

    /// Ends stage by stage; the core waits for the gateways at most `hand_over`. Services that have
    /// not ended `limit` after that are named.
    pub async fn end(&self, hand_over: Duration, limit: Duration) -> Result<(), Failure> {
        self.request(Stage::Outside);
        self.request(Stage::Gateway);
        let gateways = self.ended(Stage::Gateway);
        if tokio::time::timeout(hand_over, gateways).await.is_err() {
            tracing::info!(
                "the gateways keep samples that they could not upload in their journals"
            );
        }
        self.request(Stage::Core);
        let all = async {
            for stage in [Stage::Outside, Stage::Gateway, Stage::Core] {
                self.ended(stage).await;
            }
        };
        if tokio::time::timeout(limit, all).await.is_ok() {
            return Ok(());
        }
        let running = self.running.lock();
        let left: Vec<&str> = running
            .iter()
            .filter(|running| !running.context.has_ended())
            .map(|running| running.context.noun())
            .collect();
        Err(Failure::other(format!(
            "not ended in time: {}; acknowledged data is on disk",
            left.join(", ")
        )))
    }

    fn request(&self, stage: Stage) {
        for context in self.contexts(stage) {
            context.shutdown().request();
        }
    }

    async fn ended(&self, stage: Stage) {
        for context in self.contexts(stage) {
            context.ended().await;
        }
    }

    fn contexts(&self, stage: Stage) -> Vec<Context> {
        let running = self.running.lock();
        running
            .iter()
            .filter(|running| running.stage == stage)
            .map(|running| running.context.clone())
            .collect()
    }
}

fn contexts_of(running: &Mutex<Vec<Running>>) -> Vec<Context> {
    running.lock().iter().map(|it| it.context.clone()).collect()
}

/// Addresses of the core's services.
pub struct Core {
    pub ingest: SocketAddr,
    pub alerting: SocketAddr,
    pub path_telemetry: SocketAddr,
    pub proxy: SocketAddr,
    pub sign_in_code: Secret,
}

/// The configuration that `braid <service>` would have without any flag, file or variable.
pub(super) fn defaults<C: clap::Args>() -> Result<C, Failure> {
    service_kit::config::defaults().map_err(Failure::other)
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

pub async fn start_core(
    services: &mut Services,
    config: &UpConfig,
    start: &Start,
    engines: &Engines,
) -> Result<Core, Failure> {
    let identity = |noun: &str| start.service(noun);

    let mut it: ingest::Config = defaults()?;
    it.listen = anywhere();
    it.identity = identity("ingest")?;
    let Engines { bus, store } = engines.clone();
    let ingest_context = services.start("ingest", Stage::Core, |context| async move {
        ingest::run(it, bus, store, context)
            .await
            .map_err(Failure::from)
    });

    let mut it: alerting::Config = defaults()?;
    it.listen = anywhere();
    it.identity = identity("alerting")?;
    it.people = config.people();
    let Engines { bus, store } = engines.clone();
    let alerting_context = services.start("alerting", Stage::Core, |context| async move {
        alerting::run(it, bus, store, context)
            .await
            .map_err(Failure::from)
    });

    let mut it: path_telemetry::Config = defaults()?;
    it.listen = anywhere();
    it.identity = identity("path-telemetry")?;
    let Engines { bus, store } = engines.clone();
    let path_telemetry_context =
        services.start("path-telemetry", Stage::Core, |context| async move {
            path_telemetry::run(it, bus, store, context)
                .await
                .map_err(Failure::from)
        });

    let ingest = services.address(&ingest_context, "grpc").await?;
    let alerting = services.address(&alerting_context, "grpc").await?;
    let path_telemetry = services.address(&path_telemetry_context, "grpc").await?;

    let mut it: proxy::Config = defaults()?;
    it.listen = anywhere();
    it.identity = identity("proxy")?;
    it.allow = vec![ingest.to_string(), path_telemetry.to_string()];
    it.path_telemetry = format!("https://{path_telemetry}");
    it.data_dir = Some(start.data.join("proxy"));
    // The gateways have had their time before the proxy is asked to end.
    it.drain_ms = PROXY_DRAIN_MS;
    let proxy_context = services.start("proxy", Stage::Core, |context| async move {
        proxy::run(it, context).await.map_err(Failure::from)
    });
    let proxy = services.address(&proxy_context, "tunnel").await?;
    if let Some(it) = config.exchange() {
        let Engines { bus, store } = engines.clone();
        let exchange = services.start("exchange", Stage::Outside, |context| async move {
            exchange::run(it, bus, store, context)
                .await
                .map_err(Failure::from)
        });
        services.address(&exchange, "hospital").await?;
    }
    Ok(Core {
        ingest,
        alerting,
        path_telemetry,
        proxy,
        sign_in_code: start.sign_in_code(),
    })
}

/// Addresses that the page leads to, beside the core.
pub struct Neighbours {
    pub links: SocketAddr,
    /// The page of the first gateway.
    pub gateway_page: Option<SocketAddr>,
}

pub async fn start_dashboard(
    services: &mut Services,
    config: &UpConfig,
    start: &Start,
    core: &Core,
    neighbours: Neighbours,
    engines: &Engines,
) -> Result<SocketAddr, Failure> {
    let mut it: dashboard::Config = defaults()?;
    it.listen = config.listen;
    it.tls = config.serves_tls();
    it.identity = start.service("dashboard")?;
    it.alerting_url = format!("https://{}", core.alerting);
    it.links_url = format!("https://{}", neighbours.links);
    it.mail = config.mail_of_dashboard();
    // The gateway listens on this machine only, and so leads nobody else to its page.
    if !config.serves_tls()
        && let Some(page) = neighbours.gateway_page
    {
        it.gateway_page = format!("http://{page}/");
    }
    it.authority = Some(config.data.join(crate::identity::FOLDER));
    it.sign_in_code = Some(core.sign_in_code.clone());
    let Engines { bus, store } = engines.clone();
    let context = services.start("dashboard", Stage::Outside, |context| async move {
        dashboard::run(it, bus, store, context)
            .await
            .map_err(Failure::from)
    });
    services.show_others(&context);
    services.address(&context, "page").await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_warning_of_a_service_is_one_of_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let process = Context::new("up");
        let mut services = Services::new(process.clone(), dir.path());
        let context = services.start("alerting", Stage::Core, |context| async move {
            context.shutdown().requested().await;
            Ok(())
        });
        let nobody = context.health().warning("nobody-told");
        nobody.set(Some(service_kit::Warning {
            says: "no channel is configured".into(),
            to_do: "configure --webhook".into(),
        }));
        let shown = || {
            let all = process.wrong(Instant::now());
            let all = all
                .into_iter()
                .map(|it| format!("{}: {}", it.service, it.says));
            all.collect::<Vec<_>>()
        };
        assert_eq!(shown(), ["alerting: no channel is configured"]);
        let page = services.start("dashboard", Stage::Outside, |context| async move {
            context.shutdown().requested().await;
            Ok(())
        });
        services.show_others(&page);
        assert_eq!(
            page.wrong(Instant::now())[0].says,
            "no channel is configured"
        );
        let listed = service_kit::wrong::merged([process.wrong(Instant::now())]);
        assert_eq!(listed.len(), 1, "once: {listed:?}");
        nobody.set(None);
        assert_eq!(shown(), [""; 0]);
        for context in [&process, &context, &page] {
            context.shutdown().request();
        }
    }
}
