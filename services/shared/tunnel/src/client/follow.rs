//! Gives the tunnel the access networks that `access` chooses among the kernel's devices.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, Instant},
};

use host_network::{Endpoints, NetlinkError, NetlinkMonitor};

use crate::{
    client::{
        Tunnel,
        access::{Access, AccessRule, Action, Binding},
        proxy_address::Addresses,
    },
    sockets::interface::{Interface, bind_socket},
};

/// Age of a network at which MPTCP gets it. The kernel tries a subflow once, and gives up if a
/// router cannot send back yet.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

impl Tunnel {
    /// Adds and removes access networks by these rules as the kernel's state changes, until the
    /// tunnel is closed. Networks of other names are untouched. Belongs to the network namespace in
    /// which it is first polled.
    pub async fn follow(&self, rules: Vec<AccessRule>) -> Result<(), NetlinkError> {
        let follower = Follower {
            tunnel: self.clone(),
            monitor: NetlinkMonitor::open()?,
            access: Access::new(rules),
            settling: BTreeMap::new(),
            endpoints: self
                .may_fall_back()
                .then(Endpoints::open)
                .and_then(|opened| {
                    opened
                        .inspect_err(
                            |error| tracing::debug!(%error, "no MPTCP for access networks"),
                        )
                        .ok()
                }),
        };
        tokio::select! {
            ended = follower.run() => ended,
            () = self.closed() => Ok(()),
        }
    }
}

struct Follower {
    tunnel: Tunnel,
    monitor: NetlinkMonitor,
    access: Access,
    /// Networks that MPTCP has not got yet, and the time at which it gets them.
    settling: BTreeMap<String, (Instant, Binding)>,
    /// `None` if the kernel has no MPTCP, or this process has no right to it.
    endpoints: Option<Endpoints>,
}

impl Follower {
    async fn run(mut self) -> Result<(), NetlinkError> {
        let mut proxy = self.tunnel.proxy().watch();
        let at_first = *proxy.borrow_and_update();
        self.learn_proxy(at_first);
        loop {
            self.act();
            self.add_settled(Instant::now());
            let settled_at = self.settling.values().map(|(at, _)| *at);
            let retry_at = settled_at.chain(self.access.next_deadline()).min();
            let retry = async {
                match retry_at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                facts = self.monitor.next() => {
                    for fact in facts? {
                        self.access.learn(fact);
                    }
                }
                Ok(()) = proxy.changed() => {
                    let now_at = *proxy.borrow_and_update();
                    self.learn_proxy(now_at);
                }
                () = retry => {}
            }
        }
    }

    fn learn_proxy(&mut self, proxy: Addresses) {
        self.access
            .learn_proxy(proxy.v4.is_some(), proxy.v6.is_some());
    }

    fn act(&mut self) {
        while let Some(action) = self.access.poll(Instant::now()) {
            let proxy = self.tunnel.proxy().current();
            match action {
                Action::Attach { name, binding } => {
                    let works = match self.attach(&name, &binding, proxy) {
                        Ok(()) => {
                            let settled_at = Instant::now() + SETTLED_AFTER;
                            self.settling.insert(name.clone(), (settled_at, binding));
                            true
                        }
                        Err(error) => {
                            tracing::info!(name, %error, "access network not usable yet");
                            self.detach(&name);
                            false
                        }
                    };
                    self.access.done(Instant::now(), &name, works);
                }
                Action::Check { name, binding } => {
                    let works = leads_to(&binding, proxy);
                    if let Err(error) = &works {
                        tracing::info!(name, %error, "access network lost its route to the proxy");
                        self.detach(&name);
                    }
                    self.access.done(Instant::now(), &name, works.is_ok());
                }
                Action::Detach { name } => {
                    tracing::info!(name, "access network gone");
                    self.detach(&name);
                }
            }
        }
    }

    fn detach(&mut self, name: &str) {
        self.tunnel.detach(name);
        self.settling.remove(name);
        self.set_mptcp_endpoint(name, None);
    }

    fn add_settled(&mut self, now: Instant) {
        let due = self.settling.extract_if(.., |_, (at, _)| *at <= now);
        let due: Vec<(String, (Instant, Binding))> = due.collect();
        for (name, (_, binding)) in due {
            self.set_mptcp_endpoint(&name, Some(&binding));
        }
    }

    /// An endpoint that cannot be set costs a subflow and nothing else.
    fn set_mptcp_endpoint(&mut self, name: &str, binding: Option<&Binding>) {
        let Some(endpoints) = &mut self.endpoints else {
            return;
        };
        let result = match binding {
            Some(binding) => {
                let device = binding.device.as_deref();
                let index = device.and_then(|device| self.access.device_index(device));
                endpoints.add(name, binding.local_ip, index)
            }
            None => endpoints.remove(name),
        };
        match result {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::info!(
                    "no right to register access networks with the kernel's MPTCP: without UDP, one network carries all (ip mptcp endpoint)"
                );
                self.endpoints = None;
            }
            Err(error) => {
                tracing::info!(name, %error, "the kernel's MPTCP refuses the access network")
            }
        }
    }

    fn attach(&self, name: &str, binding: &Binding, proxy: Addresses) -> io::Result<()> {
        leads_to(binding, proxy)?;
        let interface = Interface::bind(name, binding.local_ip, binding.device.as_deref())?;
        self.tunnel.attach(interface).map_err(io::Error::other)?;
        tracing::info!(
            name,
            local_ip = %binding.local_ip,
            device = binding.device,
            "access network there"
        );
        Ok(())
    }
}

/// Whether the kernel has a route to the proxy from there; sends no packet.
fn leads_to(binding: &Binding, proxy: Addresses) -> io::Result<()> {
    if proxy.canonical().is_none() {
        return Ok(());
    }
    let proxy = proxy
        .of_family(binding.local_ip.is_ipv6())
        .ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket = bind_socket(binding.local_ip, binding.device.as_deref())?;
    socket.connect(&proxy.into())
}
