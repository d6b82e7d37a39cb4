//! path-probe
