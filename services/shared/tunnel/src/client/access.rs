//! Chooses the tunnel's access networks from the kernel's devices, addresses and routes, by the
//! rules of the configuration. Sans-IO: `follow` is its shell.
//!
//! A device makes a network when a rule matches it, it is up with a carrier, and it has a usable
//! address. Each decision is the difference between the rules' result and the work done. So a fact
//! may arrive twice, late, or only with the next complete list. A network that could not be set up,
//! for example without a route to the proxy, is tried again. That happens with every change of
//! routes, of its device or of its addresses, and every `RETRY`.
//!
//! Bounds: `DEVICES_MAX` devices with `ADDRESSES_MAX` addresses each; further ones are ignored. The
//! tunnel bounds the networks.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use host_network::NetworkFact;

use crate::paths::name::is_name;

/// Devices of the kernel that are considered; further devices, for example of containers, are
/// ignored.
const DEVICES_MAX: usize = 256;

/// Addresses of one device that are considered; further addresses are ignored.
const ADDRESSES_MAX: usize = 64;

/// Pause before a network that could not be set up is tried again without a new fact.
const RETRY: Duration = Duration::from_secs(1);

/// The addresses of a device that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Family {
    /// A family in which the proxy has an address; IPv4 first.
    #[default]
    Any,
    V4,
    V6,
}

/// A rule for the networks of the tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessRule {
    /// Every device whose name matches: `*` stands for any characters, `?` for one. The network has
    /// this name, or the device's.
    Devices {
        pattern: String,
        name: Option<String>,
        family: Family,
    },
    /// This address while it exists, on this device if one is named.
    Address {
        name: String,
        local_ip: IpAddr,
        device: Option<String>,
    },
    /// The device with an address in this network, and that address. For containers, whose device
    /// names mean nothing.
    Subnet {
        name: String,
        network: IpAddr,
        prefix: u8,
    },
    /// The route that the kernel's routing table chooses.
    Routed { name: String },
}

impl AccessRule {
    /// Whether a device of this name can become an access network by its name.
    pub fn takes_device(&self, device: &str) -> bool {
        match self {
            Self::Devices { pattern, .. } => matches(pattern, device),
            Self::Address {
                device: Some(only), ..
            } => only == device,
            Self::Address { .. } | Self::Subnet { .. } | Self::Routed { .. } => false,
        }
    }

    /// Whether its sockets are bound to a device, so that no route leads packets elsewhere.
    pub fn is_bound(&self) -> bool {
        match self {
            Self::Devices { .. } | Self::Subnet { .. } => true,
            Self::Address { device, .. } => device.is_some(),
            Self::Routed { .. } => false,
        }
    }

    /// The rule's name in the configuration.
    pub fn name(&self) -> &str {
        match self {
            Self::Devices { pattern, name, .. } => name.as_deref().unwrap_or(pattern),
            Self::Address { name, .. } | Self::Subnet { name, .. } | Self::Routed { name } => name,
        }
    }
}

/// The socket that a network needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binding {
    /// Unspecified: the kernel chooses.
    pub(crate) local_ip: IpAddr,
    pub(crate) device: Option<String>,
}

/// Work to be done. [`Access::done`] reports the result of each action except `Detach`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Attach {
        name: String,
        binding: Binding,
    },
    /// Checks whether a route to the proxy still exists. If not, the caller detaches the network
    /// and reports that.
    Check {
        name: String,
        binding: Binding,
    },
    Detach {
        name: String,
    },
}

#[derive(Debug)]
struct Device {
    name: String,
    up: bool,
    /// The addresses, each with its usability.
    addresses: BTreeMap<IpAddr, bool>,
}

#[derive(Debug)]
struct Network {
    binding: Binding,
    attached: bool,
    /// A fact has changed that may affect this network.
    doubtful: bool,
    retry_at: Option<Instant>,
}

/// The state machine of access networks.
#[derive(Debug)]
pub(crate) struct Access {
    rules: Vec<AccessRule>,
    /// Families in which the proxy may be reached: IPv4, IPv6. Both, while no address is known.
    families: (bool, bool),
    complete: bool,
    devices: BTreeMap<u32, Device>,
    networks: BTreeMap<String, Network>,
}

impl Access {
    pub(crate) fn new(rules: Vec<AccessRule>) -> Self {
        Self {
            rules,
            families: (true, true),
            complete: false,
            devices: BTreeMap::new(),
            networks: BTreeMap::new(),
        }
    }

    pub(crate) fn learn(&mut self, fact: NetworkFact) {
        match fact {
            NetworkFact::Device { index, name, up } => {
                if self.devices.len() >= DEVICES_MAX && !self.devices.contains_key(&index) {
                    return;
                }
                let device = self.devices.entry(index).or_insert_with(|| Device {
                    name: String::new(),
                    up: false,
                    addresses: BTreeMap::new(),
                });
                device.name = name;
                device.up = up;
            }
            NetworkFact::DeviceGone { index } => {
                self.devices.remove(&index);
            }
            NetworkFact::Address { index, ip, usable } => {
                if let Some(device) = self.devices.get_mut(&index)
                    && (device.addresses.len() < ADDRESSES_MAX
                        || device.addresses.contains_key(&ip))
                {
                    device.addresses.insert(ip, usable);
                }
            }
            NetworkFact::AddressGone { index, ip } => {
                if let Some(device) = self.devices.get_mut(&index) {
                    device.addresses.remove(&ip);
                }
            }
            NetworkFact::Routes => {}
            NetworkFact::List => {
                self.complete = false;
                self.devices.clear();
                return;
            }
            NetworkFact::Complete => self.complete = true,
        }
        self.doubt();
    }

    /// The families in which an address of the proxy is known.
    pub(crate) fn learn_proxy(&mut self, v4: bool, v6: bool) {
        self.families = if v4 || v6 { (v4, v6) } else { (true, true) };
        self.doubt();
    }

    fn doubt(&mut self) {
        for network in self.networks.values_mut() {
            network.doubtful = true;
        }
    }

    /// The next action, or `None`.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Action> {
        if !self.complete {
            return None;
        }
        let wanted = self.wanted();
        // Removals come first: another network may take the name and the address.
        let gone = self
            .networks
            .iter()
            .find(|(name, _)| !wanted.contains_key(*name))
            .map(|(name, network)| (name.clone(), network.attached));
        if let Some((name, attached)) = gone {
            self.networks.remove(&name);
            return if attached {
                Some(Action::Detach { name })
            } else {
                self.poll(now)
            };
        }
        for (name, binding) in wanted {
            let network = self.networks.entry(name.clone()).or_insert(Network {
                binding: binding.clone(),
                attached: false,
                doubtful: true,
                retry_at: None,
            });
            let moved = network.binding != binding;
            let due = network.retry_at.is_some_and(|at| now >= at);
            if !moved && !network.doubtful && !due {
                continue;
            }
            network.doubtful = false;
            network.retry_at = None;
            network.binding = binding.clone();
            return Some(if network.attached && !moved {
                Action::Check { name, binding }
            } else {
                Action::Attach { name, binding }
            });
        }
        None
    }

    /// The result of `Attach` and `Check`.
    pub(crate) fn done(&mut self, now: Instant, name: &str, works: bool) {
        if let Some(network) = self.networks.get_mut(name) {
            network.attached = works;
            network.retry_at = (!works).then_some(now + RETRY);
        }
    }

    /// The index of the device with that name.
    pub(crate) fn device_index(&self, name: &str) -> Option<u32> {
        let mut devices = self.devices.iter();
        devices.find_map(|(index, device)| (device.name == name).then_some(*index))
    }

    /// Time at which `poll` has work without a further fact.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let networks = self.networks.values();
        networks.filter_map(|network| network.retry_at).min()
    }

    /// The networks that the rules give; the first rule wins for a name.
    fn wanted(&self) -> BTreeMap<String, Binding> {
        let mut wanted = BTreeMap::new();
        let mut taken = Vec::new();
        for rule in &self.rules {
            match rule {
                AccessRule::Devices {
                    pattern,
                    name,
                    family,
                } => {
                    for (index, device) in &self.devices {
                        let name = name.as_ref().unwrap_or(&device.name);
                        if taken.contains(index)
                            || !matches(pattern, &device.name)
                            || !is_name(name)
                        {
                            continue;
                        }
                        taken.push(*index);
                        if let Some(local_ip) = self.address_of(device, *family, name) {
                            wanted.entry(name.clone()).or_insert(Binding {
                                local_ip,
                                device: Some(device.name.clone()),
                            });
                        }
                    }
                }
                AccessRule::Address {
                    name,
                    local_ip,
                    device,
                } => {
                    if self.is_there(*local_ip, device.as_deref()) {
                        wanted.entry(name.clone()).or_insert(Binding {
                            local_ip: *local_ip,
                            device: device.clone(),
                        });
                    }
                }
                AccessRule::Subnet {
                    name,
                    network,
                    prefix,
                } => {
                    let found = self.devices.values().filter(|device| device.up);
                    let found = found
                        .flat_map(|device| device.addresses.iter().map(move |it| (device, it)))
                        .find(|(_, (ip, usable))| **usable && is_within(**ip, *network, *prefix));
                    if let Some((device, (ip, _))) = found {
                        wanted.entry(name.clone()).or_insert(Binding {
                            local_ip: *ip,
                            device: Some(device.name.clone()),
                        });
                    }
                }
                AccessRule::Routed { name } => {
                    let local_ip = if self.families.0 {
                        IpAddr::from([0_u8; 4])
                    } else {
                        IpAddr::from([0_u16; 8])
                    };
                    wanted.entry(name.clone()).or_insert(Binding {
                        local_ip,
                        device: None,
                    });
                }
            }
        }
        wanted
    }

    /// The address in use while it is usable, otherwise the first usable address.
    fn address_of(&self, device: &Device, family: Family, name: &str) -> Option<IpAddr> {
        if !device.up {
            return None;
        }
        let (v4, v6) = match family {
            Family::Any => self.families,
            Family::V4 => (true, false),
            Family::V6 => (false, true),
        };
        // Addresses are ordered: IPv4 comes first.
        let fits = |ip: &IpAddr| (if ip.is_ipv6() { v6 } else { v4 }) && leads_out(*ip);
        let current = self
            .networks
            .get(name)
            .map(|network| network.binding.local_ip);
        let usable = device.addresses.iter().filter(|(_, usable)| **usable);
        let mut usable = usable.map(|(ip, _)| *ip).filter(fits);
        current
            .filter(|ip| fits(ip) && device.addresses.get(ip) == Some(&true))
            .or_else(|| usable.next())
    }

    fn is_there(&self, local_ip: IpAddr, device: Option<&str>) -> bool {
        // The kernel lists one address of a loopback network, and all of them exist.
        local_ip.is_loopback()
            || self.devices.values().any(|known| {
                known.up
                    && device.is_none_or(|device| device == known.name)
                    && known.addresses.contains_key(&local_ip)
            })
    }
}

/// Whether the first `prefix` bits agree; an address of the other family is never within.
fn is_within(ip: IpAddr, network: IpAddr, prefix: u8) -> bool {
    match (ip, network) {
        (IpAddr::V4(ip), IpAddr::V4(network)) => {
            let differing = (ip.to_bits() ^ network.to_bits()).leading_zeros();
            differing >= u32::from(prefix)
        }
        (IpAddr::V6(ip), IpAddr::V6(network)) => {
            let differing = (ip.to_bits() ^ network.to_bits()).leading_zeros();
            differing >= u32::from(prefix)
        }
        _ => false,
    }
}

/// Whether the address reaches beyond this link and this host.
fn leads_out(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local() && !ip.is_unspecified(),
    }
}

/// `*` stands for any characters, `?` for one.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = strip(name, first) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        let found = rest
            .char_indices()
            .map(|(at, _)| at)
            .chain([rest.len()])
            .find_map(|at| strip(rest.get(at..)?, part));
        match found {
            Some(after) => rest = after,
            None => return false,
        }
    }
    let from = rest.chars().count().checked_sub(last.chars().count());
    let tail = from.and_then(|from| {
        let at = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
        at.into_iter().nth(from).and_then(|at| rest.get(at..))
    });
    tail.and_then(|tail| strip(tail, last)) == Some("")
}

/// The text after `part`, which has no `*`, at the beginning of `text`.
fn strip<'a>(text: &'a str, part: &str) -> Option<&'a str> {
    let mut rest = text.chars();
    for wanted in part.chars() {
        let found = rest.next()?;
        if wanted != '?' && wanted != found {
            return None;
        }
    }
    Some(rest.as_str())
}

#[cfg(test)]
mod tests;
