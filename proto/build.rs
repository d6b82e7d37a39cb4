//! Compiles the contracts without protoc: protox parses and checks, prost and tonic generate.

use std::{env, fs, io, path::PathBuf};

const FILES: [&str; 7] = [
    "braid/vitals/v1/vitals.proto",
    "braid/alerts/v1/alerts.proto",
    "braid/paths/v1/paths.proto",
    "braid/query/v1/query.proto",
    "braid/policy/v1/policy.proto",
    "braid/identity/v1/identity.proto",
    "braid/patients/v1/patients.proto",
];

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?);
    println!("cargo:rerun-if-changed=braid");
    let descriptors = protox::compile(FILES, [&root]).map_err(io::Error::other)?;
    let out = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?);
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::codec::Codec")
        .compile_fds(descriptors)?;
    fs::metadata(out.join("braid.vitals.v1.rs")).map(drop)
}
