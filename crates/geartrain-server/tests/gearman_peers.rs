//! Real Gearman clients, workers and administrators, unchanged, on a geartrain server: Debian's tools, two libraries for Python and one for Node.
//!
//! The programs that are made with the libraries are in peers/gearman-py and peers/gearman-node.

mod libraries;
mod mixed;
mod program;
mod tools;
