//! Gives the tunnel the access networks that `access` chooses among the kernel's devices.

use std::{
    collections::BTreeMap,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use host_network::{Endpoints, NetlinkError, NetlinkMonitor};
use tokio::sync::watch;

use crate::{
    client::{
        Tunnel,
        access::{Access, AccessRule, Action, Binding},
        placement,
        proxy_address::Addresses,
    },
    paths::orders::Order,
    sockets::interface::{Interface, bind_socket},
};

/// Age of a network at which an open session over MPTCP gets it. The kernel tries a subflow once,
/// and gives up if a router cannot send back yet.
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
            schedule: self.shared.setup.schedule.subscribe(),
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
    /// Networks that have just come, and the time at which an open session gets them.
    settling: BTreeMap<String, (Instant, Binding)>,
    /// Which of them stand by.
    schedule: watch::Receiver<Order>,
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
            self.obey_schedule();
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
                // Never an error: the tunnel has the sender.
                _ = self.schedule.changed() => {}
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
                    // Before a session can begin there; an open one would try at once. Its former
                    // address is no endpoint any more.
                    match self.tunnel.session_over_tcp().is_some() {
                        true => self.unregister(&name),
                        false => self.register(&name, &binding),
                    }
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
        self.unregister(name);
        self.tunnel.detach(name);
        self.settling.remove(name);
    }

    /// The kernel closes the subflows of the network.
    fn unregister(&mut self, name: &str) {
        self.tunnel.look_last();
        self.tell_kernel(name, |endpoints| endpoints.remove(name));
    }

    fn add_settled(&mut self, now: Instant) {
        let due = self.settling.extract_if(.., |_, (at, _)| *at <= now);
        let due: Vec<(String, (Instant, Binding))> = due.collect();
        for (name, (_, binding)) in due {
            let open = self.tunnel.session_over_tcp();
            // A session that began meanwhile may have met a router too early.
            let misses = open.is_some_and(|it| !it.held().contains(&name.as_str().into()));
            let has_it = |endpoints: &Endpoints| endpoints.names().any(|it| it == name);
            if misses || !self.endpoints.as_ref().is_some_and(has_it) {
                self.register(&name, &binding);
            }
        }
    }

    /// Gives the network to the kernel's MPTCP, with its rank.
    fn register(&mut self, name: &str, binding: &Binding) {
        let device = binding.device.as_deref();
        let index = device.and_then(|device| self.access.device_index(device));
        let schedule = self.schedule.borrow().schedule.clone();
        self.tell_kernel(name, |endpoints| {
            let this = Arc::from(name);
            let mut names: Vec<Arc<str>> = endpoints.names().map(Arc::from).collect();
            names.push(Arc::clone(&this));
            let carries = placement::carriers(&schedule, &names).contains(&this);
            endpoints.add(name, binding.local_ip, index, !carries)
        });
    }

    /// Lets accesses stand by or carry, also in open connections.
    fn obey_schedule(&mut self) {
        let schedule = self.schedule.borrow_and_update().schedule.clone();
        let Some(endpoints) = &self.endpoints else {
            return;
        };
        let names: Vec<Arc<str>> = endpoints.names().map(Arc::from).collect();
        let carriers = placement::carriers(&schedule, &names);
        // First those that carry from now on, so that some do at each moment.
        let (carrying, standing): (Vec<_>, Vec<_>) =
            names.iter().partition(|name| carriers.contains(name));
        for (names, backup) in [(carrying, false), (standing, true)] {
            for name in names {
                self.tell_kernel(name, |endpoints| endpoints.set_backup(name, backup));
            }
        }
    }

    /// An endpoint that cannot be set costs a subflow or its rank, and nothing else.
    fn tell_kernel(&mut self, name: &str, tell: impl FnOnce(&mut Endpoints) -> io::Result<()>) {
        let Some(endpoints) = &mut self.endpoints else {
            return;
        };
        match tell(endpoints) {
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
