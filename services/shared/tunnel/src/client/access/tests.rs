#![allow(clippy::unwrap_used)]

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn devices(pattern: &str) -> AccessRule {
    AccessRule::Devices {
        pattern: pattern.to_owned(),
        name: None,
        family: Family::Any,
    }
}

fn device(index: u32, name: &str, up: bool) -> NetworkFact {
    NetworkFact::Device {
        index,
        name: name.to_owned(),
        up,
    }
}

fn address(index: u32, text: &str) -> NetworkFact {
    NetworkFact::Address {
        index,
        ip: ip(text),
        usable: true,
    }
}

/// Executes the actions; sockets to `unreachable` addresses fail.
struct Bench {
    access: Access,
    now: Instant,
    attached: BTreeMap<String, String>,
    unreachable: Vec<IpAddr>,
    log: Vec<String>,
}

impl Bench {
    fn new(rules: Vec<AccessRule>) -> Self {
        let mut bench = Self {
            access: Access::new(rules),
            now: Instant::now(),
            attached: BTreeMap::new(),
            unreachable: Vec::new(),
            log: Vec::new(),
        };
        bench.feed(vec![
            NetworkFact::List,
            device(1, "lo", true),
            address(1, "127.0.0.1"),
        ]);
        assert!(bench.log.is_empty(), "nothing before the list is complete");
        bench.feed(vec![NetworkFact::Complete]);
        bench
    }

    /// The actions that follow from the facts.
    fn feed(&mut self, facts: Vec<NetworkFact>) -> Vec<String> {
        for fact in facts {
            self.access.learn(fact);
        }
        self.work()
    }

    fn learn_proxy(&mut self, v4: bool, v6: bool) -> Vec<String> {
        self.access.learn_proxy(v4, v6);
        self.work()
    }

    fn work(&mut self) -> Vec<String> {
        self.log.clear();
        for _ in 0..100 {
            let Some(action) = self.access.poll(self.now) else {
                return self.log.clone();
            };
            match action {
                Action::Attach { name, binding } => {
                    let works = !self.unreachable.contains(&binding.local_ip);
                    self.access.done(self.now, &name, works);
                    let device = binding.device.unwrap_or_default();
                    let place = format!("{}@{device}", binding.local_ip);
                    self.log
                        .push(format!("{}{name} {place}", if works { '+' } else { '?' }));
                    if works {
                        self.attached.insert(name, place);
                    }
                }
                Action::Check { name, binding } => {
                    let works = !self.unreachable.contains(&binding.local_ip);
                    self.access.done(self.now, &name, works);
                    if !works {
                        self.log.push(format!("-{name}"));
                        self.attached.remove(&name);
                    }
                }
                Action::Detach { name } => {
                    assert!(
                        self.attached.remove(&name).is_some(),
                        "{name} was not there"
                    );
                    self.log.push(format!("-{name}"));
                }
            }
        }
        panic!("never done: {:?}", self.log);
    }
}

#[test]
fn patterns() {
    for (pattern, name) in [
        ("wlan*", "wlan0"),
        ("*", "x"),
        ("*", ""),
        ("w*n?", "wwan0"),
        ("a*b*c", "a-b-b-c"),
        ("eth0", "eth0"),
        ("*0", "eth00"),
    ] {
        assert!(matches(pattern, name), "{pattern} {name}");
    }
    for (pattern, name) in [
        ("wlan*", "wla"),
        ("eth0", "eth00"),
        ("eth?", "eth"),
        ("a*b*c", "a-c-b"),
        ("aa*aa", "aaa"),
        ("", "x"),
    ] {
        assert!(!matches(pattern, name), "{pattern} {name}");
    }
}

#[test]
fn a_modem_is_plugged_in_and_pulled_out() {
    let mut bench = Bench::new(vec![devices("wwan*")]);
    assert!(bench.feed(vec![device(7, "wwan0", false)]).is_empty());
    assert!(bench.feed(vec![address(7, "10.1.0.2")]).is_empty());
    assert_eq!(
        bench.feed(vec![device(7, "wwan0", true)]),
        ["+wwan0 10.1.0.2@wwan0"]
    );
    // A repeated fact, and facts about other devices.
    let other = vec![
        device(7, "wwan0", true),
        device(8, "eth0", true),
        address(8, "192.0.2.1"),
        NetworkFact::Routes,
    ];
    assert!(bench.feed(other).is_empty());
    assert_eq!(
        bench.feed(vec![NetworkFact::DeviceGone { index: 7 }]),
        ["-wwan0"]
    );
}

#[test]
fn carrier_and_address_come_and_go() {
    let mut bench = Bench::new(vec![devices("wlan*"), devices("eth?")]);
    bench.feed(vec![
        device(2, "wlan0", true),
        address(2, "fe80::1"),
        address(2, "169.254.3.4"),
    ]);
    assert!(bench.attached.is_empty(), "no address that leads out");
    assert_eq!(
        bench.feed(vec![address(2, "192.168.1.7")]),
        ["+wlan0 192.168.1.7@wlan0"]
    );
    assert_eq!(bench.feed(vec![device(2, "wlan0", false)]), ["-wlan0"]);
    assert_eq!(
        bench.feed(vec![device(2, "wlan0", true)]),
        ["+wlan0 192.168.1.7@wlan0"]
    );
    // A second address changes nothing; a new lease in its place does.
    assert!(bench.feed(vec![address(2, "192.168.1.3")]).is_empty());
    let gone = NetworkFact::AddressGone {
        index: 2,
        ip: ip("192.168.1.7"),
    };
    assert_eq!(bench.feed(vec![gone]), ["+wlan0 192.168.1.3@wlan0"]);
    let tentative = NetworkFact::Address {
        index: 2,
        ip: ip("192.168.1.3"),
        usable: false,
    };
    assert_eq!(bench.feed(vec![tentative]), ["-wlan0"]);
}

#[test]
fn a_subnet_finds_its_device_whatever_its_name() {
    let subnet = |name: &str, network: &str, prefix| AccessRule::Subnet {
        name: name.to_owned(),
        network: ip(network),
        prefix,
    };
    let mut bench = Bench::new(vec![
        subnet("wifi", "10.89.1.0", 24),
        subnet("lte", "10.89.2.0", 24),
        subnet("six", "2001:db8:1::", 48),
    ]);
    let facts = vec![
        device(4, "eth0", true),
        address(4, "10.89.2.3"),
        device(5, "eth1", true),
        address(5, "10.89.1.3"),
        device(6, "eth2", true),
        address(6, "10.89.3.3"),
        address(6, "2001:db8:2::1"),
    ];
    let done = bench.feed(facts);
    assert_eq!(done, ["+lte 10.89.2.3@eth0", "+wifi 10.89.1.3@eth1"]);
    let six = vec![address(6, "2001:db8:1:ffff::1")];
    assert_eq!(bench.feed(six), ["+six 2001:db8:1:ffff::1@eth2"]);
    assert_eq!(bench.feed(vec![device(5, "eth1", false)]), ["-wifi"]);
    // Attached again under another name, as after a restart of the network.
    let facts = vec![device(9, "eth7", true), address(9, "10.89.1.9")];
    assert_eq!(bench.feed(facts), ["+wifi 10.89.1.9@eth7"]);
    assert!(is_within(ip("10.89.1.3"), ip("0.0.0.0"), 0));
    assert!(!is_within(ip("10.89.1.3"), ip("10.89.1.2"), 32));
}

#[test]
fn families_and_names() {
    let rule = |name: &str, family| AccessRule::Devices {
        pattern: "eth0".to_owned(),
        name: Some(name.to_owned()),
        family,
    };
    let facts = || {
        vec![
            device(2, "eth0", true),
            address(2, "192.0.2.7"),
            address(2, "2001:db8::7"),
        ]
    };
    let mut four = Bench::new(vec![rule("fixed", Family::Any)]);
    assert_eq!(four.feed(facts()), ["+fixed 192.0.2.7@eth0"]);
    let mut six = Bench::new(vec![rule("fixed", Family::V6)]);
    assert_eq!(six.feed(facts()), ["+fixed 2001:db8::7@eth0"]);
    // IPv4 if the proxy has an IPv4 address.
    assert!(four.learn_proxy(true, true).is_empty());
    assert_eq!(four.learn_proxy(false, true), ["+fixed 2001:db8::7@eth0"]);
    // A rule matches a device only if no earlier rule does.
    let mut both = Bench::new(vec![rule("a", Family::V4), devices("*")]);
    assert_eq!(both.feed(facts()), ["+a 192.0.2.7@eth0"]);
}

#[test]
fn fixed_addresses_and_the_routing_tables_choice() {
    let fixed = |name: &str, local_ip: &str, device: Option<&str>| AccessRule::Address {
        name: name.to_owned(),
        local_ip: ip(local_ip),
        device: device.map(str::to_owned),
    };
    let mut bench = Bench::new(vec![
        fixed("loop", "127.0.9.1", None),
        fixed("wifi", "192.168.1.7", Some("wlan0")),
        AccessRule::Routed {
            name: "default".to_owned(),
        },
    ]);
    assert_eq!(bench.attached["loop"], "127.0.9.1@");
    assert_eq!(bench.attached["default"], "0.0.0.0@");
    assert!(
        bench
            .feed(vec![device(2, "wlan1", true), address(2, "192.168.1.7")])
            .is_empty()
    );
    let there = vec![device(3, "wlan0", true), address(3, "192.168.1.7")];
    assert_eq!(bench.feed(there), ["+wifi 192.168.1.7@wlan0"]);
    assert_eq!(bench.feed(vec![device(3, "wlan0", false)]), ["-wifi"]);
}

#[test]
fn a_network_without_a_route_waits_for_one() {
    let mut bench = Bench::new(vec![devices("eth*")]);
    bench.unreachable.push(ip("192.0.2.7"));
    let there = vec![device(2, "eth0", true), address(2, "192.0.2.7")];
    assert_eq!(bench.feed(there), ["?eth0 192.0.2.7@eth0"]);
    let deadline = bench.access.next_deadline().unwrap();
    assert!(bench.work().is_empty(), "not before something changes");
    bench.now = deadline;
    assert_eq!(bench.work(), ["?eth0 192.0.2.7@eth0"]);
    bench.unreachable.clear();
    assert_eq!(
        bench.feed(vec![NetworkFact::Routes]),
        ["+eth0 192.0.2.7@eth0"]
    );
    assert_eq!(bench.access.next_deadline(), None);
    bench.unreachable.push(ip("192.0.2.7"));
    assert_eq!(bench.feed(vec![NetworkFact::Routes]), ["-eth0"]);
    bench.unreachable.clear();
    assert_eq!(
        bench.feed(vec![NetworkFact::Routes]),
        ["+eth0 192.0.2.7@eth0"]
    );
}

#[test]
fn a_fresh_list_replaces_the_old_one_without_a_flap() {
    let mut bench = Bench::new(vec![devices("eth*")]);
    bench.feed(vec![
        device(2, "eth0", true),
        address(2, "192.0.2.7"),
        device(3, "eth1", true),
        address(3, "198.51.100.7"),
    ]);
    assert_eq!(bench.attached.len(), 2);
    assert!(
        bench
            .feed(vec![NetworkFact::List, device(3, "eth1", true)])
            .is_empty()
    );
    let rest = vec![address(3, "198.51.100.7"), NetworkFact::Complete];
    assert_eq!(bench.feed(rest), ["-eth0"]);
    assert_eq!(bench.attached.keys().collect::<Vec<_>>(), ["eth1"]);
}

#[test]
fn random_facts_end_in_what_the_rules_want() {
    use rand::{RngExt, SeedableRng};
    for seed in 0..200 {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let mut bench = Bench::new(vec![devices("a*"), devices("b*")]);
        for _ in 0..200 {
            let index = random.random_range(2..8_u32);
            let text = format!("10.0.{index}.{}", random.random_range(1..4_u8));
            let name = format!("{}{index}", ["a", "b", "c"][index as usize % 3]);
            let fact = match random.random_range(0..6_u8) {
                0 => device(index, &name, true),
                1 => device(index, &name, false),
                2 => NetworkFact::DeviceGone { index },
                3 => address(index, &text),
                4 => NetworkFact::AddressGone {
                    index,
                    ip: ip(&text),
                },
                _ => NetworkFact::Routes,
            };
            bench.unreachable.clear();
            if random.random_bool(0.2) {
                bench.unreachable.push(ip(&text));
            }
            bench.now += Duration::from_millis(random.random_range(0..400));
            bench.feed(vec![fact]);
        }
        bench.unreachable.clear();
        bench.feed(vec![NetworkFact::Routes]);
        let wanted: Vec<String> = bench.access.wanted().into_keys().collect();
        let attached: Vec<String> = bench.attached.keys().cloned().collect();
        assert_eq!(attached, wanted, "seed {seed}");
    }
}
