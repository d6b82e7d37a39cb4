//! The surroundings of a service in a separate process: log, admin listener, signals, exit status.

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use contracts::text;
use dashboard::moment;
use service_kit::config::EXIT_CONFIG;
use service_kit::telemetry::TelemetryConfig;
use service_kit::{ConfigError, Context, DRAIN_LIMIT, Shutdown, admin, telemetry};
use tokio::signal::unix::{SignalKind, signal};

/// Time for a service to return after shutdown was requested; then the process ends without it. It
/// includes [`DRAIN_LIMIT`].
const EXIT_LIMIT: Duration = DRAIN_LIMIT.saturating_add(Duration::from_millis(700));
/// Time beyond its own drain for a service that may drain for longer.
const AFTER_DRAIN: Duration = Duration::from_millis(1_700);
/// Exit status after a second signal: 128 + SIGINT, as shells report it.
const EXIT_IMPATIENT: i32 = 130;

/// Flags that every service has.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct ProcessConfig {
    /// Address of /healthz, /readyz, /metrics and /paths.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9100")]
    pub admin: SocketAddr,
    #[command(flatten)]
    pub telemetry: TelemetryConfig,
}

/// Why the program ends with a status other than 0.
#[derive(Debug)]
pub enum Failure {
    Config(ConfigError),
    Other(String),
}

impl Failure {
    pub fn other(reason: impl fmt::Display) -> Failure {
        Failure::Other(reason.to_string())
    }

    /// Adds the service's noun.
    pub fn of(self, noun: &str) -> Failure {
        match self {
            Failure::Config(error) => Failure::Config(error),
            Failure::Other(reason) => Failure::Other(format!("{noun}: {reason}")),
        }
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Config(_) => EXIT_CONFIG,
            Failure::Other(_) => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Config(error) => error.fmt(f),
            Failure::Other(reason) => f.write_str(reason),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::Config(error)
    }
}

/// Clears the screen and goes to its corner.
pub const CLEAR: &str = "\x1b[H\x1b[2J";

/// Prints a line to standard output. A newline in it is shown escaped, so that no name of another
/// person or machine begins a line of its own.
pub fn say(line: &str) -> Result<(), Failure> {
    verbatim(&format!("{}\n", text::line(line)))
}

/// Prints several lines. Foreign parts of them must be one line each: see [`text::line`].
pub fn print(lines: &str) -> Result<(), Failure> {
    // A screen that is drawn anew begins with Braid's own sequence.
    match lines.strip_prefix(CLEAR) {
        Some(rest) => verbatim(&format!("{CLEAR}{}", text::lines(rest))),
        None => verbatim(&text::lines(lines)),
    }
}

/// Prints a value as JSON.
pub fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    json_text(&serde_json::to_string_pretty(value).map_err(Failure::other)?)
}

/// Prints JSON that is text already.
pub fn json_text(json: &str) -> Result<(), Failure> {
    verbatim(&format!("{}\n", text::json(json)))
}

/// Prints to standard error.
pub fn complain(lines: &str) {
    // An error that cannot be shown cannot be reported.
    let _ = writeln!(std::io::stderr().lock(), "{}", text::lines(lines));
}

/// UTC, to the second.
pub fn when(us: i64) -> String {
    calendar::rfc3339(us).unwrap_or_else(|| moment::shown(us))
}

/// Prints a text that is Braid's own, such as a script, as it is. A reader that stops early, such
/// as `head`, is no failure.
pub fn verbatim(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => written.map_err(|error| Failure::other(format!("standard output: {error}"))),
    }
}

/// An event loop for `main`.
pub fn block_on<F: Future>(main: F) -> Result<F::Output, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::other(format!("event loop: {error}")))?;
    let output = runtime.block_on(main);
    // Blocking work that is still under way must not delay the exit.
    runtime.shutdown_timeout(Duration::from_millis(200));
    Ok(output)
}

/// How long the process waits for a service whose connections may go on for `drain`.
pub fn exit_limit(drain: Duration) -> Duration {
    EXIT_LIMIT.max(drain.saturating_add(AFTER_DRAIN))
}

/// Runs `service` until it ends or a signal asks it to; the second signal ends the process at once.
/// A service that has not returned within `limit` after the first is left behind. The service gets
/// the address of the admin listener too.
pub fn run<F, Fut>(
    noun: &'static str,
    config: ProcessConfig,
    limit: Duration,
    service: F,
) -> Result<(), Failure>
where
    F: FnOnce(Context, SocketAddr) -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    block_on(async {
        config.telemetry.validate()?;
        let traces = telemetry::init(noun, &config.telemetry).map_err(Failure::other)?;
        let context = Context::new(noun);
        let bound = admin::start(config.admin, "admin", vec![context.clone()]).await?;
        tracing::info!(address = %bound, "admin listener");
        watch_signals(context.shutdown().clone())?;
        let outcome = until_drained(&context, limit, service(context.clone(), bound)).await;
        context.end();
        let flushed = tokio::task::spawn_blocking(move || traces.shutdown());
        // Only traces may be lost.
        let _ = tokio::time::timeout(Duration::from_millis(500), flushed).await;
        outcome
    })?
}

/// The service's own result, or a failure if it does not end in time after it was asked to.
pub async fn until_drained(
    context: &Context,
    limit: Duration,
    service: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let overdue = async {
        context.shutdown().requested().await;
        tokio::time::sleep(limit).await;
    };
    tokio::select! {
        outcome = service => outcome,
        () = overdue => Err(Failure::other(format!(
            "{} did not finish within {:.1} s; its acknowledged data is on disk",
            context.noun(),
            limit.as_secs_f32(),
        ))),
    }
}

/// SIGTERM and SIGINT request an orderly end.
pub fn watch_signals(shutdown: Shutdown) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::other(format!("signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if shutdown.is_requested() {
                std::process::exit(EXIT_IMPATIENT);
            }
            tracing::info!("shutdown requested; draining, a second signal ends at once");
            shutdown.request();
        }
    });
    Ok(())
}
