//! Real Gearman clients, workers and administrators, unchanged, on a geartrain server: Debian's tools, two libraries for Python and one for Node.
//!
//! The programs that are made with the libraries are in peers/gearman-py and peers/gearman-node.

#[path = "gearman_peers/libraries.rs"]
mod libraries;
#[path = "gearman_peers/mixed.rs"]
mod mixed;
#[path = "gearman_peers/program.rs"]
mod program;
#[path = "gearman_peers/tools.rs"]
mod tools;
