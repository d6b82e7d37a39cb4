//! The library's configuration of one simulated host.

use std::sync::Arc;

use multipath::{ControllerConfig, Controllers, Coupling, PathScheduler};
use noq_proto::congestion::{Bbr3Config, ControllerFactory, CubicConfig, NewRenoConfig};
use noq_proto::{TransportConfig, VarInt};

use crate::address::INTERFACES_MAX;
use crate::classic::{FastConfig, OliaConfig};
use crate::mechanisms::Mechanisms;
use crate::oracle::{Oracle, Oracles};
use crate::scenario::{Buffers, Controller, Scenario};

/// Largest UDP payload: a link MTU of 1500 less the headers.
const UDP_PAYLOAD_BYTES: u16 = 1472;
const RECEIVE_WINDOW_BYTES: u32 = 20_000_000;
const SEND_WINDOW_BYTES: u64 = 10_000_000;

pub(super) fn transport(
    scenario: &Scenario,
    path_scheduler: &Arc<PathScheduler>,
    mechanisms: Mechanisms,
    oracle: Option<&Arc<Oracle>>,
) -> TransportConfig {
    let mut config = TransportConfig::default();
    let ours = || {
        let controller = ControllerConfig {
            startup_floor: mechanisms.startup_floor,
            scheduled: mechanisms.path_scheduler,
            coupling: if mechanisms.coupling {
                Coupling::Detected
            } else {
                Coupling::Off
            },
            ..ControllerConfig::default()
        };
        Controllers::new(path_scheduler.clone(), controller)
    };
    let factory: Arc<dyn ControllerFactory + Send + Sync> = match scenario.controller {
        Controller::Ours => ours(),
        Controller::Oracle => Arc::new(Oracles {
            oracle: oracle.cloned().unwrap_or_default(),
            models: ours(),
        }),
        Controller::Bbr => Arc::new(Bbr3Config::default()),
        Controller::Cubic => Arc::new(CubicConfig::default()),
        Controller::Newreno => Arc::new(NewRenoConfig::default()),
        Controller::Olia => Arc::new(OliaConfig::default()),
        Controller::Fast => Arc::new(FastConfig),
    };
    let mut mtu = noq_proto::MtuDiscoveryConfig::default();
    mtu.upper_bound(UDP_PAYLOAD_BYTES);
    config
        .congestion_controller_factory(factory)
        .mtu_discovery_config(Some(mtu))
        .max_concurrent_multipath_paths(INTERFACES_MAX as u32 + 4)
        .stream_receive_window(VarInt::from_u32(multipath::STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(RECEIVE_WINDOW_BYTES))
        .send_window(SEND_WINDOW_BYTES)
        .default_path_max_idle_timeout(None)
        .max_concurrent_uni_streams(VarInt::from_u32(100));
    if scenario.controller.is_steered() {
        multipath::tune(&mut config);
    }
    if let Some(Buffers {
        send_bytes,
        receive_bytes,
    }) = scenario.buffers
    {
        let window = VarInt::from_u64(receive_bytes).unwrap_or(VarInt::MAX);
        config
            .send_window(send_bytes)
            .stream_receive_window(window)
            .receive_window(window);
    }
    config
}
