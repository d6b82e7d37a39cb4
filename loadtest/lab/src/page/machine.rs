//! On which machine a report was made.

/// Processor, cores, memory and kernel, as the system reports them.
pub(crate) fn describe() -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = field(&cpu, "model name").unwrap_or("processor not known");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = read("/proc/meminfo");
    let kib = field(&memory, "MemTotal").and_then(|text| text.split(' ').next());
    let gib = kib.and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0) / 1_048_576.0;
    let kernel = read("/proc/sys/kernel/osrelease");
    format!(
        "{model}, {cores} cores, {gib:.0} GiB, Linux {}",
        kernel.trim()
    )
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_name() {
        let text = "processor\t: 0\nmodel name\t: A processor\n";
        assert_eq!(field(text, "model name"), Some("A processor"));
        assert_eq!(field(text, "flags"), None);
    }
}
