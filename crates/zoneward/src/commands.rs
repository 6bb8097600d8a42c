//! One file per command.

mod cleanup;
mod complete;
mod completion;
mod controller;
pub mod drain_zone;
pub mod export;
pub mod expose;
pub mod join;
mod loopback;
mod man;
pub mod mesh;
pub mod migrate;
mod node;
pub mod observe;
mod plan;
mod planning;
pub mod preflight;
pub mod simulate;
pub mod status;
mod store;
pub mod sysdump;
pub mod token;
mod trace;
mod up;
mod version;

use anyhow::Result;

pub(crate) use trace::packet::parse::flag as parse_packet;

use crate::cli::{Cli, Command, PlanCommand, TraceCommand};

/// Runs a command. `false` is exit code 1.
pub fn run(cli: Cli) -> Result<bool> {
    cluster::supervisor::drop_privileges()?;
    cluster::supervisor::exit_with_parent();
    match cli.command {
        Command::Plan(PlanCommand::Slices(args)) => plan::slices::run(&args),
        Command::Plan(PlanCommand::Addresses(args)) => plan::addresses::run(&args),
        Command::Plan(PlanCommand::Validate(args)) => plan::validate::run(&args),
        Command::Plan(PlanCommand::Node(args)) => plan::node::run(&args),
        Command::Plan(PlanCommand::Routes(args)) => plan::routes::run(&args),
        Command::Plan(PlanCommand::Status(args)) => plan::status::run(&args),
        Command::Trace(TraceCommand::Select(args)) => trace::select::run(&args),
        Command::Trace(TraceCommand::Packet(args)) => trace::packet::run(&args),
        Command::Node(args) => node::run(&args),
        Command::Trace(TraceCommand::Http(args)) => trace::http::run(&args),
        Command::Trace(TraceCommand::Dns(args)) => trace::dns::run(&args),
        Command::Cleanup(args) => cleanup::run(&args),
        Command::Simulate(command) => simulate::run(&command),
        Command::Status(args) => status::status(&args),
        Command::Top(args) => status::top(&args),
        Command::Observe(args) => observe::run(&args),
        Command::Store(command) => store::run(&command),
        Command::Up(args) => up::run(&args),
        Command::Controller(args) => controller::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::DrainZone(args) => drain_zone::drain(&args),
        Command::UndrainZone(args) => drain_zone::undrain(&args),
        Command::Expose(args) => expose::run(&args),
        Command::Token(command) => token::run(&command),
        Command::Join(args) => join::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Mesh(command) => mesh::run(&command),
        Command::Migrate(command) => migrate::run(command),
        Command::Preflight(args) => preflight::run(&args),
        Command::Sysdump(args) => sysdump::run(&args),
        Command::Version(args) => version::run(&args),
        Command::Completion { shell } => completion::run(shell),
        Command::Complete { words } => complete::run(&words),
        Command::Man { dir } => man::run(dir.as_deref()),
    }
}
