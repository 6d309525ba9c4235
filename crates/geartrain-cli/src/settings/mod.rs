//! Settings: the configuration file, which completes the command line, and the contexts in it.
//!
//! A flag comes first, then an environment variable, then the file, then the default. The settings of a server are
//! its flags: there is no second list of them.

mod context;
mod file;
mod position;
mod production;
mod server;
mod show;

pub(crate) use context::{InEffect, Origin};
pub(crate) use file::{ConfigFile, Context, Located};
pub(crate) use production::{Production, Unconfirmed};
pub(crate) use show::{of_server, show};
