//! `braid up`: every service in one process on the embedded bus and store, over loopback sockets
//! with real TLS. Simulated patients are behind emulated access links.
//!
//! The start creates identities, engines and register first. Then the core starts from the store
//! towards the access side, so that each service finds the next one listening; then gateways, then
//! patients. The end goes the other way: patients and page stop first, then the gateways upload
//! what they can, then the core stops. A gateway's journal keeps the rest for the next start.

mod config;
mod episodes;
mod first_start;
mod gateways;
mod links;
mod report;
mod services;

use std::net::SocketAddr;
use std::time::Duration;

use service_kit::Context;

use crate::demonstration_ward::DemonstrationWard;
use crate::engines::Engines;
use crate::process::Failure;

pub use config::UpConfig;
pub use first_start::OPERATOR;
pub use report::Addresses;
use services::Services;

/// Time for the gateways' last uploads before the core is asked to end.
const HAND_OVER_LIMIT: Duration = Duration::from_millis(1_500);
/// Time for all services to end after that.
const END_LIMIT: Duration = Duration::from_millis(2_800);

/// Runs until `context`'s shutdown is requested or a service fails.
/// `admin` is the address of its admin listener.
pub async fn run(config: UpConfig, admin: SocketAddr, context: Context) -> Result<(), Failure> {
    let started = context.health().check("start");
    let start = first_start::prepare(&config.data)?;
    let engines = Engines::open(&config.data, &config.data)?;
    let store = engines.store.as_ref();
    let password = start.ensure_account(store).await?;
    let ward = DemonstrationWard::with_a_gateway_each(config.patients);
    ward.register(store).await?;

    let mut services = Services::new(context.clone(), &config.data);
    let outcome = async {
        let core = services::start_core(&mut services, &config, &start, &engines).await?;
        let links = links::Links::new();
        let sensors = gateways::start(&mut services, &config, &start, &core, &ward, &links).await?;
        let links_address = links::serve(&mut services, &start, links).await?;
        let page = services::start_dashboard(
            &mut services,
            &config,
            &start,
            &core,
            services::Neighbours {
                links: links_address,
                gateway_page: sensors.first().copied(),
            },
            &engines,
        )
        .await?;
        let triggers = gateways::start_patients(&mut services, &config, &ward, &sensors);
        episodes::serve(&config.data, triggers, context.shutdown().clone())?;
        let report = report::Report {
            page,
            scheme: if config.serves_tls() { "https" } else { "http" },
            sensors: sensors.first().copied(),
            links: links_address,
            admin,
            sign_in_code: core.sign_in_code.clone(),
            password,
        };
        report.publish(&config.data)?;
        report.print(&config.data, &ward);
        started.ok();
        services.first_end().await
    }
    .await;
    // A failed start must stop the started services, in the same order as a regular end.
    context.shutdown().request();
    let ended = services.end(HAND_OVER_LIMIT, END_LIMIT).await;
    outcome.and(ended)
}
