//! A gateway and a proxy in separate network namespaces. A router between them shapes each access
//! network, so no sender is throttled by its own interface.
//!
//! ```text
//!   gateway: wifi0 10.1.0.2 --\                       /-- core0 10.9.0.2: proxy
//!            lte0  10.2.0.2 ---- router (ip_forward) --
//!            ...   10.n.0.2 --/                       \-- core1 10.8.0.1 -- far0 10.8.0.2, 10.8.1.2
//! ```

// If the namespaces cannot be set up, the test fails.
#![allow(clippy::unwrap_used)]

use std::{
    fs::File,
    net::SocketAddr,
    os::fd::AsFd,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread::JoinHandle,
};

use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, move_into_link_name_space, set_capabilities,
};

static WORLDS: AtomicU32 = AtomicU32::new(0);

/// Rate of an access network that is as fast as the kernel.
pub const UNSHAPED: &str = "";

pub struct World {
    id: String,
}

/// Runs `ip`, and returns its error text if it fails.
fn try_ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("ip {arguments}: {}", said.trim()))
}

impl World {
    /// Returns `None`, with a message, on hosts without namespaces.
    pub fn new() -> Option<World> {
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let world = World {
            id: format!("braid{}-{number}", std::process::id()),
        };
        for side in ["gw", "rt", "px"] {
            if let Err(error) = try_ip(&format!("netns add {}", world.name(side))) {
                assert!(
                    std::env::var_os("BRAID_REQUIRE_NETNS").is_none(),
                    "namespaces are required here: {error}"
                );
                println!("SKIPPED: this test needs root and network namespaces ({error})");
                return None;
            }
            world.ip(side, "link set lo up");
        }
        world.forward("rt");
        let rt = world.name("rt");
        world.ip(
            "px",
            &format!("link add core0 type veth peer name m-core netns {rt}"),
        );
        world.ip("px", "addr add 10.9.0.2/24 dev core0");
        world.ip("px", "link set core0 up");
        world.ip("rt", "addr add 10.9.0.1/24 dev m-core");
        world.ip("rt", "link set m-core up");
        world.ip("px", "route add default via 10.9.0.1");
        world.ip("px", "addr add fd00:9::2/64 dev core0 nodad");
        world.ip("rt", "addr add fd00:9::1/64 dev m-core nodad");
        world.ip("px", "-6 route add default via fd00:9::1");
        Some(world)
    }

    /// Lets the kernel of a side forward packets for other hosts.
    fn forward(&self, side: &str) {
        for family in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            let forward = Command::new("ip")
                .args(["netns", "exec", &self.name(side), "sh", "-c"])
                .arg(format!("echo 1 > /proc/sys/net/{family}"))
                .status();
            assert!(forward.is_ok_and(|status| status.success()), "{family}");
        }
    }

    /// Adds the side "far" with two addresses behind the proxy, which forwards between it and its
    /// own devices.
    pub fn plug_far(&self) {
        let far = self.name("far");
        try_ip(&format!("netns add {far}")).unwrap();
        self.ip("far", "link set lo up");
        self.ip(
            "px",
            &format!("link add core1 type veth peer name far0 netns {far}"),
        );
        self.ip("px", "addr add 10.8.0.1/24 dev core1");
        self.ip("px", "addr add fd00:8::1/64 dev core1 nodad");
        self.ip("px", "link set core1 up");
        self.ip("far", "addr add 10.8.0.2/24 dev far0");
        self.ip("far", "addr add 10.8.1.2/32 dev lo");
        self.ip("far", "addr add fd00:8::2/64 dev far0 nodad");
        self.ip("far", "link set far0 up");
        self.ip("far", "route add default via 10.8.0.1");
        self.ip("far", "-6 route add default via fd00:8::1");
        self.ip("px", "route add 10.8.1.0/24 via 10.8.0.2");
        self.forward("px");
    }

    /// Adds the side "host": a host at 10.7.0.2 whose only router is the gateway, 10.7.0.1.
    pub fn plug_host(&self) {
        let host = self.name("host");
        try_ip(&format!("netns add {host}")).unwrap();
        self.ip("host", "link set lo up");
        self.ip(
            "gw",
            &format!("link add lan0 type veth peer name eth0 netns {host}"),
        );
        self.ip("gw", "addr add 10.7.0.1/24 dev lan0");
        self.ip("gw", "link set lan0 up");
        self.ip("host", "addr add 10.7.0.2/24 dev eth0");
        self.ip("host", "link set eth0 up");
        self.ip("host", "route add default via 10.7.0.1");
        self.forward("gw");
    }

    pub fn name(&self, side: &str) -> String {
        format!("{}-{side}", self.id)
    }

    pub fn ip(&self, side: &str, arguments: &str) {
        let arguments = format!("-n {} {arguments}", self.name(side));
        if let Err(error) = try_ip(&arguments) {
            panic!("{error}");
        }
    }

    /// Plugs in an IPv4 access network: a device of the gateway in network `net`, shaped towards
    /// the gateway unless the rate is [`UNSHAPED`].
    pub fn plug(&self, device: &str, net: u8, rate: &str) {
        self.cable(device, rate);
        self.ip("rt", &format!("addr add 10.{net}.0.1/24 dev m-{device}"));
        self.ip("gw", &format!("addr add 10.{net}.0.2/24 dev {device}"));
        self.up(device, net);
    }

    /// The same for IPv6 only.
    pub fn plug_ipv6(&self, device: &str, net: u8, rate: &str) {
        self.cable(device, rate);
        self.ip(
            "rt",
            &format!("addr add fd00:{net}::1/64 dev m-{device} nodad"),
        );
        self.ip("gw", &format!("link set {device} up"));
        self.ip(
            "gw",
            &format!("addr add fd00:{net}::2/64 dev {device} nodad"),
        );
        self.ip(
            "gw",
            &format!("-6 route replace default via fd00:{net}::1 dev {device}"),
        );
    }

    fn cable(&self, device: &str, rate: &str) {
        let rt = self.name("rt");
        self.ip(
            "gw",
            &format!("link add {device} type veth peer name m-{device} netns {rt}"),
        );
        self.ip("rt", &format!("link set m-{device} up"));
        // A real access network has no address resolution. Here a lost question would be repeated
        // only after a second, so the kernel repeats it after 100 ms.
        for (side, device) in [("gw", device), ("rt", &format!("m-{device}"))] {
            for cache in ["arp_cache", "ndisc_cache"] {
                self.ip(
                    side,
                    &format!("ntable change name {cache} dev {device} retrans 100"),
                );
            }
        }
        if rate == UNSHAPED {
            return;
        }
        self.shape("rt", &format!("m-{device}"), rate, "30ms");
    }

    /// Shapes what the gateway sends over a device; [`World::plug`] shapes what it receives. The
    /// queue is long: what is dropped here has never left, although its sender has counted it.
    pub fn shape_upwards(&self, device: &str, rate: &str) {
        self.shape("gw", device, rate, "500ms");
    }

    fn shape(&self, side: &str, device: &str, rate: &str, queue: &str) {
        let shaped = Command::new("tc")
            .args(["-n", &self.name(side), "qdisc", "add", "dev", device])
            .args(["root", "tbf", "rate", rate, "burst", "16k"])
            .args(["latency", queue])
            .status();
        assert!(shaped.is_ok_and(|status| status.success()), "tc");
    }

    /// The gateway's kernel makes connections of plain TCP only.
    pub fn without_mptcp(&self) {
        let switched = Command::new("ip")
            .args(["netns", "exec", &self.name("gw"), "sh", "-c"])
            .arg("echo 0 > /proc/sys/net/mptcp/enabled")
            .status();
        assert!(
            switched.is_ok_and(|status| status.success()),
            "net.mptcp.enabled"
        );
    }

    /// Takes the device up, with the route that a DHCP client would add.
    pub fn up(&self, device: &str, net: u8) {
        self.ip("gw", &format!("link set {device} up"));
        self.route(device, net);
        self.forwards(device);
    }

    /// Waits until the router sends over the device: its kernel notices a returned carrier up to a
    /// second later.
    // Blocks only the thread of one test, whose runtime has other threads.
    #[allow(clippy::disallowed_methods)]
    fn forwards(&self, device: &str) {
        let (rt, peer) = (self.name("rt"), format!("m-{device}"));
        for _ in 0..300 {
            let shown = Command::new("ip")
                .args(["-n", &rt, "-o", "link", "show", "dev", &peer])
                .output()
                .unwrap();
            if String::from_utf8_lossy(&shown.stdout).contains("state UP") {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("the router's {peer} does not come up");
    }

    /// The addresses that the gateway's kernel makes subflows over; an error if the kernel has no
    /// MPTCP.
    pub fn mptcp_endpoints(&self) -> Result<String, String> {
        let output = Command::new("ip")
            .args(["-n", &self.name("gw"), "mptcp", "endpoint", "show"])
            .output()
            .map_err(|error| format!("ip: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Connections of TCP from the gateway to the proxy; each subflow of MPTCP counts.
    pub fn tcp_connections(&self) -> usize {
        let output = Command::new("ip")
            .args(["netns", "exec", &self.name("gw"), "ss", "-Htn", "state"])
            .args(["established", &format!("dport = {}", proxy().port())])
            .output()
            .unwrap();
        assert!(output.status.success(), "ss");
        String::from_utf8_lossy(&output.stdout).lines().count()
    }

    /// The router drops all UDP.
    pub fn block_udp(&self) {
        self.ip("rt", "rule add ipproto udp blackhole pref 1");
    }

    /// The router answers all UDP with an error of ICMP: "administratively prohibited".
    pub fn reject_udp(&self) {
        self.ip("rt", "rule add ipproto udp prohibit pref 1");
    }

    /// Takes [`World::block_udp`] or [`World::reject_udp`] back.
    pub fn let_udp_pass(&self) {
        self.ip("rt", "rule del pref 1");
    }

    /// The router drops all packets of a device of the gateway; the gateway's kernel gets no event.
    pub fn cut(&self, device: &str, net: u8) {
        self.ip(
            "rt",
            &format!("rule add iif m-{device} blackhole pref {}", 10 + net),
        );
        self.ip(
            "rt",
            &format!("rule add to 10.{net}.0.2 blackhole pref {}", 20 + net),
        );
    }

    /// Takes [`World::cut`] back.
    pub fn mend(&self, net: u8) {
        for pref in [10 + net, 20 + net] {
            self.ip("rt", &format!("rule del pref {pref}"));
        }
    }

    /// Bytes that a device of the gateway has received.
    pub fn received(&self, device: &str) -> u64 {
        self.counted(device, "RX:")
    }

    /// Bytes that a device of the gateway has sent.
    pub fn sent(&self, device: &str) -> u64 {
        self.counted(device, "TX:")
    }

    fn counted(&self, device: &str, direction: &str) -> u64 {
        let output = Command::new("ip")
            .args(["-n", &self.name("gw"), "-s", "-o", "link", "show", device])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let counters = text.split_once(direction).unwrap().1;
        let number = counters
            .split_whitespace()
            .find_map(|word| word.parse().ok());
        number.unwrap()
    }

    pub fn route(&self, device: &str, net: u8) {
        self.ip(
            "gw",
            &format!("route replace default via 10.{net}.0.1 dev {device} metric {net}"),
        );
    }

    /// Runs `work` in a namespace, with a runtime whose threads belong to it too.
    pub fn spawn<T, F>(
        &self,
        side: &str,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> JoinHandle<T>
    where
        T: Send + 'static,
        F: Future<Output = T>,
    {
        self.spawn_as(side, || (), work)
    }

    /// The same without any capability.
    pub fn spawn_powerless<T, F>(
        &self,
        side: &str,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> JoinHandle<T>
    where
        T: Send + 'static,
        F: Future<Output = T>,
    {
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        self.spawn_as(side, move || set_capabilities(None, none).unwrap(), work)
    }

    fn spawn_as<T, F>(
        &self,
        side: &str,
        become_it: impl FnOnce() + Send + 'static,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> JoinHandle<T>
    where
        T: Send + 'static,
        F: Future<Output = T>,
    {
        let path = format!("/run/netns/{}", self.name(side));
        std::thread::spawn(move || {
            let namespace = File::open(&path).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            become_it();
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap()
                .block_on(work())
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for side in ["gw", "rt", "px", "far", "host"] {
            // A namespace that was not created cannot be deleted.
            let _ = try_ip(&format!("netns del {}", self.name(side)));
        }
    }
}

pub const PROXY: ([u8; 4], u16) = ([10, 9, 0, 2], 4433);

pub fn proxy() -> SocketAddr {
    PROXY.into()
}

pub fn proxy_ipv6() -> SocketAddr {
    ([0xfd00, 9, 0, 0, 0, 0, 0, 2], PROXY.1).into()
}
