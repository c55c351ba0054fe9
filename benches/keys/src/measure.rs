//! Interleaved rounds, medians, and the table.

/// One line of a table.
pub struct Row<'a> {
    name: &'a str,
    work: Box<dyn Fn()>,
}

impl<'a> Row<'a> {
    pub fn new(name: &'a str, work: impl Fn() + 'static) -> Self {
        let work = Box::new(work);
        Self { name, work }
    }
}

/// Returns the CPU time of this thread in nanoseconds, which other programs do not affect.
pub fn processor_time() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call only writes to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Returns the median and the quartiles.
pub fn quartiles(mut times: Vec<f64>) -> [f64; 3] {
    times.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| times[(times.len() - 1) * quarter / 4])
}

/// Prints the times of all rows, divided by `units`, and their ratios to the first row. Each round measures each row
/// once, so a disturbance of the machine affects all rows.
pub fn compare(title: &str, rows: &[Row], rounds: usize, units: u64) {
    let mut times = vec![Vec::new(); rows.len()];
    for round in 0..=rounds {
        for (row, times) in rows.iter().zip(&mut times) {
            let begin = processor_time();
            (row.work)();
            let time = (processor_time() - begin) / units as f64;
            // The first round warms up.
            if round > 0 {
                times.push(time);
            }
        }
    }
    // The ratio of times in the same round.
    let first = times[0].clone();
    println!("\n{title}");
    println!("{:<58} {:>9} {:>8} {:>17}", "", "ns", "ratio", "quartiles");
    for (row, times) in rows.iter().zip(times) {
        let ratios = times.iter().zip(&first).map(|(one, base)| one / base);
        let [low, ratio, high] = quartiles(ratios.collect());
        let [_, median, _] = quartiles(times);
        println!(
            "{:<58} {median:>9.3} {ratio:>8.3} {low:>8.3} {high:>8.3}",
            row.name
        );
    }
}
