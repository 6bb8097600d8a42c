//! The program behind `cargo xtask dist`.

fn main() -> anyhow::Result<()> {
    Ok(())
}
