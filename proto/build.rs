//! Compiles the contracts without protoc: protox parses and checks, prost and tonic generate.
//!
//! Fields of the enum `Metric` become numbers, which are the same on the wire: the catalogue has
//! more metrics than the enum.

use std::{env, fs, io, path::PathBuf};

use protox::prost_reflect::prost_types::field_descriptor_proto::Type;

const FILES: [&str; 7] = [
    "braid/vitals/v1/vitals.proto",
    "braid/alerts/v1/alerts.proto",
    "braid/paths/v1/paths.proto",
    "braid/query/v1/query.proto",
    "braid/policy/v1/policy.proto",
    "braid/identity/v1/identity.proto",
    "braid/patients/v1/patients.proto",
];

const METRIC: &str = ".braid.vitals.v1.Metric";

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?);
    println!("cargo:rerun-if-changed=braid");
    let mut descriptors = protox::compile(FILES, [&root]).map_err(io::Error::other)?;
    for message in descriptors
        .file
        .iter_mut()
        .flat_map(|file| &mut file.message_type)
    {
        for field in &mut message.field {
            if field.type_name() == METRIC {
                field.type_name = None;
                field.set_type(Type::Int32);
            }
        }
    }
    let out = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?);
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::codec::Codec")
        .compile_fds(descriptors)?;
    fs::metadata(out.join("braid.vitals.v1.rs")).map(drop)
}
