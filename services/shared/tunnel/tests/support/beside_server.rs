//! A gateway's side in namespaces, beside a server in the proxy's.

// Each test file uses its part.
#![allow(dead_code)]

use std::sync::{Arc, mpsc};

use testkit::netns::{World, proxy};
use tunnel::{
    AccessRule, ConnectRequest, Family, SessionHandle, Tunnel, TunnelConfig, TunnelServer,
};

use crate::bench::{Identities, serve};

pub const DEVICES: [(&str, u8); 2] = [("wlan0", 1), ("wwan0", 2)];

pub fn config(identities: &Identities) -> TunnelConfig {
    let tls = identities.client.client_config(&[tunnel::ALPN]);
    let mut config = TunnelConfig::new(proxy(), "localhost", tls);
    config.fallback = true;
    config
}

/// Gives the tunnel the access networks of the namespace, as they come and go.
pub fn follow(tunnel: &Tunnel) {
    let following = tunnel.clone();
    let rules = DEVICES.map(|(device, _)| AccessRule::Devices {
        pattern: device.to_owned(),
        name: None,
        family: Family::Any,
    });
    tokio::spawn(async move { following.follow(rules.to_vec()).await.unwrap() });
}

/// Runs the gateway's side against a server that gives each request to `answer`.
pub fn beside_server<F, S, A, G>(world: World, answer: A, gateway: G)
where
    F: Future<Output = ()>,
    S: Future<Output = ()> + Send + 'static,
    A: Fn(ConnectRequest, SessionHandle) -> S + Clone + Send + Sync + 'static,
    G: FnOnce(Arc<World>, Identities) -> F + Send + 'static,
{
    let identities = Identities::new();
    let mut config = identities.server_config(proxy());
    config.fallback = true;
    let (listening, is_listening) = mpsc::channel();
    let (done, until_done) = tokio::sync::oneshot::channel::<()>();
    let server = world.spawn("px", move || async move {
        let server = Arc::new(TunnelServer::bind(config).unwrap());
        serve(server.clone(), answer);
        listening.send(()).unwrap();
        // A test that panicked needs no server.
        let _ = until_done.await;
        server.close().await;
    });
    is_listening.recv().unwrap();
    let world = Arc::new(world);
    let inside = world.clone();
    let client = world.spawn("gw", move || gateway(inside, identities));
    let ended = client.join();
    let _ = done.send(());
    server.join().unwrap();
    ended.unwrap();
}
