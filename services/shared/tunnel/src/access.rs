//! Which access networks there are: decides from what the kernel tells of devices, addresses and routes, by rules of the
//! configuration, which networks the tunnel is to have. Knows no socket and no clock; `netlink` is its shell.
//!
//! A device makes a network when a rule takes it, it is up with a carrier, and it has an address that may be used. The
//! decision is always the difference between what the rules want of the devices and what was done, so a fact may be told twice, late or
//! not at all before the next complete list. A network that could not be set up (no route to the proxy yet, say) is tried again with every
//! change of routes, of its device or of its addresses, and every `RETRY`.
//!
//! Bounds: `DEVICES_MAX` devices with `ADDRESSES_MAX` addresses each; further ones are ignored. Networks are bounded by the tunnel.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::names::is_name;

/// Devices of the kernel that are looked at; a host of containers may have more, which are ignored.
const DEVICES_MAX: usize = 256;

/// Addresses of one device that are looked at.
const ADDRESSES_MAX: usize = 64;

/// Pause before a network that could not be set up is tried without a further fact.
const RETRY: Duration = Duration::from_secs(1);

/// Which addresses of a device may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Family {
    /// One in which the proxy has an address, IPv4 first.
    #[default]
    Any,
    V4,
    V6,
}

/// Says which networks the tunnel takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessRule {
    /// Every device whose name matches: `*` stands for any characters, `?` for one. The network bears the device's name, or this one.
    Devices {
        pattern: String,
        name: Option<String>,
        family: Family,
    },
    /// This address, while it is there, on this device if one is named.
    Address {
        name: String,
        local_ip: IpAddr,
        device: Option<String>,
    },
    /// The device that has an address of this network, and that address: where names of devices mean nothing, as in containers.
    Subnet {
        name: String,
        network: IpAddr,
        prefix: u8,
    },
    /// Whatever the routing table chooses.
    Routed { name: String },
}

impl AccessRule {
    /// Whether a device of this name may become an access network by its name.
    pub fn takes_device(&self, device: &str) -> bool {
        match self {
            Self::Devices { pattern, .. } => matches(pattern, device),
            Self::Address {
                device: Some(only), ..
            } => only == device,
            Self::Address { .. } | Self::Subnet { .. } | Self::Routed { .. } => false,
        }
    }

    /// Whether its sockets are bound to a device, so that no route leads their packets elsewhere.
    pub fn is_bound(&self) -> bool {
        match self {
            Self::Devices { .. } | Self::Subnet { .. } => true,
            Self::Address { device, .. } => device.is_some(),
            Self::Routed { .. } => false,
        }
    }

    /// As whoever wrote it knows it.
    pub fn name(&self) -> &str {
        match self {
            Self::Devices { pattern, name, .. } => name.as_deref().unwrap_or(pattern),
            Self::Address { name, .. } | Self::Subnet { name, .. } | Self::Routed { name } => name,
        }
    }
}

/// What the kernel says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fact {
    /// `up` means enabled and with a carrier.
    Device {
        index: u32,
        name: String,
        up: bool,
    },
    DeviceGone {
        index: u32,
    },
    /// `usable`: not tentative, not deprecated.
    Address {
        index: u32,
        ip: IpAddr,
        usable: bool,
    },
    AddressGone {
        index: u32,
        ip: IpAddr,
    },
    /// Some route was added or removed.
    Routes,
    /// In which families the proxy is known to have an address.
    Proxy {
        v4: bool,
        v6: bool,
    },
    /// From here on a complete list follows, which ends with `Complete`.
    List,
    Complete,
}

/// A socket that a network is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binding {
    /// Unspecified: the kernel chooses.
    pub(crate) local_ip: IpAddr,
    pub(crate) device: Option<String>,
}

/// What is to be done; each is answered by [`Access::done`] but `Detach`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Attach {
        name: String,
        binding: Binding,
    },
    /// Is there still a way to the proxy? If not, it is detached and so answered.
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
    /// Whether each may be used.
    addresses: BTreeMap<IpAddr, bool>,
}

#[derive(Debug)]
struct Network {
    binding: Binding,
    attached: bool,
    /// Something has changed that may matter to it.
    doubtful: bool,
    retry_at: Option<Instant>,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Access {
    rules: Vec<AccessRule>,
    /// Families in which the proxy may be reached: IPv4, IPv6. Both while nothing is known of it.
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

    pub(crate) fn learn(&mut self, fact: Fact) {
        match fact {
            Fact::Device { index, name, up } => {
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
            Fact::DeviceGone { index } => {
                self.devices.remove(&index);
            }
            Fact::Address { index, ip, usable } => {
                if let Some(device) = self.devices.get_mut(&index)
                    && (device.addresses.len() < ADDRESSES_MAX
                        || device.addresses.contains_key(&ip))
                {
                    device.addresses.insert(ip, usable);
                }
            }
            Fact::AddressGone { index, ip } => {
                if let Some(device) = self.devices.get_mut(&index) {
                    device.addresses.remove(&ip);
                }
            }
            Fact::Routes => {}
            Fact::Proxy { v4, v6 } => {
                self.families = if v4 || v6 { (v4, v6) } else { (true, true) };
            }
            Fact::List => {
                self.complete = false;
                self.devices.clear();
                return;
            }
            Fact::Complete => self.complete = true,
        }
        for network in self.networks.values_mut() {
            network.doubtful = true;
        }
    }

    /// The next thing to do, until there is none.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Action> {
        if !self.complete {
            return None;
        }
        let wanted = self.wanted();
        // What is gone first: its name and its address may be taken again.
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

    /// The answer to `Attach` and `Check`.
    pub(crate) fn done(&mut self, now: Instant, name: &str, works: bool) {
        if let Some(network) = self.networks.get_mut(name) {
            network.attached = works;
            network.retry_at = (!works).then_some(now + RETRY);
        }
    }

    /// The number of the device of that name.
    pub(crate) fn device_index(&self, name: &str) -> Option<u32> {
        let mut devices = self.devices.iter();
        devices.find_map(|(index, device)| (device.name == name).then_some(*index))
    }

    /// When `poll` has something to do without a further fact.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let networks = self.networks.values();
        networks.filter_map(|network| network.retry_at).min()
    }

    /// The networks that the rules make of the devices; of two of one name the first rule's is taken.
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

    /// The address in use for as long as it may be used, else the first that may.
    fn address_of(&self, device: &Device, family: Family, name: &str) -> Option<IpAddr> {
        if !device.up {
            return None;
        }
        let (v4, v6) = match family {
            Family::Any => self.families,
            Family::V4 => (true, false),
            Family::V6 => (false, true),
        };
        // Addresses are in order: those of IPv4 come first.
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
        // Of a loopback network the kernel lists one address, and all are there.
        local_ip.is_loopback()
            || self.devices.values().any(|known| {
                known.up
                    && device.is_none_or(|device| device == known.name)
                    && known.addresses.contains_key(&local_ip)
            })
    }
}

/// Whether the first `prefix` bits agree; an address of the other family is not within.
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

/// Not an address that ends at this link or this host.
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

/// What follows `part`, which has no `*`, at the beginning of `text`.
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
