#![allow(clippy::unwrap_used)]
mod graph_support;
use graph_support::graphs::*;
use rekindle_plan::Bytes;
use rekindle_plan::graph::*;
#[test]
fn score() {
    let mut random = Sequence(77);
    let mut sets: Vec<(&str, Vec<Graph>)> = vec![];
    sets.push((
        "residual small",
        (0..4).map(|_| residual(&mut random, 6, 6)).collect(),
    ));
    sets.push((
        "residual mid",
        (0..2).map(|_| residual(&mut random, 30, 8)).collect(),
    ));
    sets.push((
        "residual big",
        (0..1).map(|_| residual(&mut random, 150, 8)).collect(),
    ));
    sets.push(("unet", vec![unet(3, false), unet(4, false)]));
    sets.push((
        "training",
        (0..8).map(|i| training(&mut random, 10 + 4 * i)).collect(),
    ));
    sets.push(("equal", vec![equal_steps(20), equal_steps(40)]));
    sets.push(("any", (0..6).map(|_| any(&mut random, 30)).collect()));
    sets.push((
        "chain",
        (0..4)
            .map(|i| of_chain(&random_chain(&mut random, 10 + 10 * i)))
            .collect(),
    ));
    let mut all = 0.0;
    for (name, graphs) in sets {
        let start = std::time::Instant::now();
        let (mut sum, mut n, mut bad) = (0.0, 0.0, 0);
        for g in &graphs {
            let r = simulate(g, &Program::recorded(g).unwrap().without_dead_runs(g));
            for p in [15, 20, 30, 45, 60, 80] {
                let b = Bytes(r.peak.0 * p / 100);
                match plan_graph(g, &GraphRequest::within(b)) {
                    Ok(plan) => {
                        sum += (plan.simulated.time.0 / r.time.0).ln();
                        n += 1.0;
                    }
                    Err(_) => {
                        bad += 1;
                    }
                }
            }
        }
        all += sum;
        println!(
            "{name:16} mean {:.5} n {n} infeasible {bad} {:.1?}",
            sum / n,
            start.elapsed()
        );
    }
    println!("all {all:.4}");
}
#[test]
fn monotone() {
    let mut random = Sequence(99);
    let graphs = [
        ("res66", residual(&mut random, 6, 6)),
        ("res208", residual(&mut random, 20, 8)),
        ("unet", unet(4, false)),
        ("tr", training(&mut random, 30)),
        ("chain", of_chain(&random_chain(&mut random, 30))),
    ];
    for (name, g) in &graphs {
        let (_, least) = smallest_program(g).unwrap();
        let r = simulate(g, &Program::recorded(g).unwrap());
        let (mut best, mut worst, mut count) = (f64::INFINITY, 1.0_f64, 0);
        for part in 0..=40 {
            let b = Bytes(least.peak.0 + (r.peak.0 - least.peak.0) * part / 40);
            let t = plan_graph(g, &GraphRequest::within(b))
                .unwrap()
                .simulated
                .time
                .0;
            if t > best {
                count += 1;
                worst = worst.max(t / best);
            }
            best = best.min(t);
        }
        println!("mono {name}: {count} of 41 rise, worst x{worst:.4}");
    }
}
#[test]
fn timing() {
    let graph = residual(&mut Sequence(3), 400, 8);
    let r = simulate(&graph, &Program::recorded(&graph).unwrap());
    for planner in [
        GraphPlanner::Segments,
        GraphPlanner::Optimal,
        GraphPlanner::Auto,
    ] {
        for p in [5, 10, 50] {
            let start = std::time::Instant::now();
            let t = plan_graph(
                &graph,
                &GraphRequest {
                    planner,
                    ..GraphRequest::within(Bytes(r.peak.0 * p / 100))
                },
            );
            println!(
                "timing {} {planner:?} {p} {:?} {:?}",
                graph.operations.len(),
                t.map(|p| (p.planner, p.simulated.time.0 / r.time.0))
                    .map_err(|e| e.to_string()),
                start.elapsed()
            );
        }
    }
}
