//! `braid tun`: sets up IP for a proxy without the right to, in a container whose image has no
//! shell and no `ip`.

use std::{
    ffi::OsString,
    fs, io,
    net::IpAddr,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::Command,
};

use host_network::{TunDevice, masquerade};
use ip_packets::IpPrefix;
use service_kit::ConfigError;

use crate::process::{self, Failure};

/// Whether the kernel forwards packets for other hosts, by IP version.
const FORWARDING: [(&str, &str); 2] = [
    ("net.ipv4.ip_forward", "/proc/sys/net/ipv4/ip_forward"),
    (
        "net.ipv6.conf.all.forwarding",
        "/proc/sys/net/ipv6/conf/all/forwarding",
    ),
];

/// The kernel's door to TUN devices, and the mode that udev gives it. The kernel checks the rights
/// of a device by itself.
const DOOR: &str = "/dev/net/tun";
const DOOR_MODE: u32 = 0o666;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Makes it in the network namespace in which it runs, and takes NET_ADMIN, and SETUID and SETGID for a command. It stays, and any process of the namespace may open it: on a machine that others use, too, make one that belongs to a user (ip tuntap).\n\nExamples:\n  braid tun --tun braid0 --ip-pool 10.64.0.0/16 --masquerade\n  braid tun --tun braid0 --ip-pool 10.64.0.0/16 --masquerade \\\n      --run-as 65532 -- braid proxy --tun braid0 ..."
)]
pub struct TunCommand {
    /// The TUN device, under the name that the proxy has.
    #[arg(long, value_name = "DEVICE")]
    tun: String,
    /// The proxy's pools, at most one of each version; the device gets the first address of each.
    #[arg(
        long = "ip-pool",
        value_name = "PREFIX",
        value_delimiter = ',',
        required = true
    )]
    ip_pool: Vec<IpPrefix>,
    /// Translate packets of the pools to this machine's address (nftables, table `braid`), so that
    /// no other host needs a route to the pools.
    #[arg(long)]
    masquerade: bool,
    /// User and group that the command runs as.
    #[arg(long, value_name = "ID", requires = "command")]
    run_as: Option<u32>,
    /// The program to execute afterwards, in place of this one.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl TunCommand {
    pub fn run(self) -> Result<(), Failure> {
        self.validate()?;
        process::block_on(self.make())??;
        let Some((program, arguments)) = self.command.split_first() else {
            return Ok(());
        };
        let mut command = Command::new(program);
        command.args(arguments);
        if let Some(id) = self.run_as {
            command.uid(id).gid(id);
        }
        // Returns only if it fails.
        let error = command.exec();
        Err(Failure::other(format!("{}: {error}", program.display())))
    }

    fn validate(&self) -> Result<(), Failure> {
        let refuse = |field: &str, reason: String, example: &str| {
            Err(ConfigError::new(field, reason, example).into())
        };
        if !host_network::is_device(&self.tun) {
            let reason = format!("{:?} is not a valid device name", self.tun);
            return refuse("tun", reason, "--tun braid0");
        }
        for (number, pool) in self.ip_pool.iter().enumerate() {
            let before = &self.ip_pool[..number];
            if before.iter().any(|other| version(other) == version(pool)) {
                let reason = format!("{pool} is the second of its version");
                return refuse("ip_pool", reason, "--ip-pool 10.64.0.0/16,fd00:64::/112");
            }
        }
        Ok(())
    }

    async fn make(&self) -> Result<(), Failure> {
        for pool in &self.ip_pool {
            let (name, file) = FORWARDING[version(pool)];
            let set = fs::read_to_string(file)
                .map_err(|error| Failure::other(format!("{file}: {error}")))?;
            if set.trim() == "0" {
                return Err(Failure::other(format!(
                    "packets of {pool} are not forwarded: {name} is 0 here; set it to 1"
                )));
            }
        }
        open_door().map_err(|error| Failure::other(format!("{DOOR}: {error}")))?;
        let device = TunDevice::open(&self.tun).map_err(Failure::other)?;
        device.keep().map_err(Failure::other)?;
        device.set_up().await.map_err(Failure::other)?;
        for pool in &self.ip_pool {
            let own = pool.nth(1).unwrap_or(pool.network());
            let added = device.add_address(own, pool.length()).await;
            added.map_err(Failure::other)?;
            if self.masquerade {
                masquerade(&self.tun, *pool).map_err(Failure::other)?;
            }
        }
        Ok(())
    }
}

/// Lets every user open the door: the proxy has no right of root.
fn open_door() -> io::Result<()> {
    let mut permissions = fs::metadata(DOOR)?.permissions();
    let mode = permissions.mode();
    if mode & DOOR_MODE == DOOR_MODE {
        return Ok(());
    }
    permissions.set_mode(mode | DOOR_MODE);
    fs::set_permissions(DOOR, permissions)
}

fn version(pool: &IpPrefix) -> usize {
    usize::from(matches!(pool.network(), IpAddr::V6(_)))
}
