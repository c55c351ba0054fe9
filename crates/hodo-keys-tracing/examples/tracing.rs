//! Logging with `tracing`, where an event that nobody wants is one nop. The level is an argument, and changes while the
//! program runs.
//!
//! ```text
//! cargo run -p hodo-keys-tracing --example tracing -- info
//! ```

use hodo_keys_tracing::{debug, info, info_span};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, reload};

fn request(id: u32, path: &str) -> usize {
    let _entered = info_span!("request", id).entered();
    debug!(path, "begins");
    let length = path.len();
    debug!(length, "ends");
    length
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let level: LevelFilter = match std::env::args().nth(1) {
        Some(level) => level.parse()?,
        None => LevelFilter::INFO,
    };
    // This comes first: from here on keys follow the subscribers.
    let places = hodo_keys_tracing::install()?;
    let (filter, handle) = reload::Layer::new(level);
    tracing_subscriber::registry()
        .with(filter)
        .with(fmt::layer().without_time().with_ansi(false))
        .init();
    info!(places, %level, "begins");
    request(1, "/");
    // As an administrator would, while the program runs.
    handle.reload(LevelFilter::DEBUG)?;
    request(2, "/debugged");
    handle.reload(LevelFilter::INFO)?;
    request(3, "/");
    info!("ends");
    Ok(())
}
