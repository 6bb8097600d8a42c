//! Real Envoys beside a live API, each test in a network namespace of its own: `zoneward up` or the demo, `zoneward mesh
//! control`, bootstraps as they are printed, and requests that are counted.

mod capture;
mod certificates;
mod changes;
mod control;
mod ports;
mod restarts;
mod zones;
