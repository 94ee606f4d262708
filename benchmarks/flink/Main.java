import com.sun.management.OperatingSystemMXBean;
import java.io.File;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Runs a case on one cluster within this process: a warm-up, then the measured runs. Arguments are name=value, see flinkpeer.py; the
 * result is JSON in the file `out`.
 */
public final class Main {
    public static void main(String[] words) throws Exception {
        Map<String, String> args = new HashMap<>();
        for (String word : words) {
            String[] parts = word.split("=", 2);
            args.put(parts[0], parts[1]);
        }
        int lanes = Integer.parseInt(args.get("parallelism"));
        Configuration config = new Configuration();
        config.setString("state.backend.type", "hashmap");
        config.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
        config.setString("execution.checkpointing.interval", args.get("snapshot_every"));
        config.setString("execution.checkpointing.dir", new File(args.get("scratch"), "checkpoints").toURI().toString());
        config.setString("execution.buffer-timeout.interval", args.get("buffer_timeout"));
        config.setString("pipeline.object-reuse", "true");
        config.setString("restart-strategy.type", "disable"); // a run that had to start again is no result
        config.setString("taskmanager.memory.network.min", "128mb");
        config.setString("taskmanager.memory.network.max", "128mb");
        config.setString("rest.port", "0");
        config.setString("rest.bind-port", "0");
        MiniClusterConfiguration one =
                new MiniClusterConfiguration.Builder()
                        .setConfiguration(config)
                        .setNumTaskManagers(1)
                        .setNumSlotsPerTaskManager(lanes)
                        .build();
        List<Object> found = new ArrayList<>();
        try (MiniCluster cluster = new MiniCluster(one)) {
            cluster.start();
            if (args.get("case").equals("latency")) {
                found.add(latency(cluster, config, args, lanes));
            } else if (args.get("case").equals("load")) {
                for (String point : args.get("points").split(",")) {
                    found.add(Load.run(cluster, environment(config, lanes), point, args, lanes));
                }
            } else {
                counts(cluster, config, args, Long.parseLong(args.get("warm_rows")), args.get("warm_folder"), lanes);
                for (int run = 0; run < Integer.parseInt(args.get("runs")); run++) {
                    found.add(counts(cluster, config, args, Long.parseLong(args.get("rows")), args.get("folder"), lanes));
                }
            }
        }
        new ObjectMapper().writeValue(new File(args.get("out")), Map.of("runs", found));
    }

    private static Map<String, Object> counts(
            MiniCluster cluster, Configuration config, Map<String, String> args, long rows, String folder, int lanes) throws Exception {
        AdCounts.RESULTS.clear();
        Map<String, String> changed = new HashMap<>(args);
        changed.put("folder", folder);
        StreamExecutionEnvironment env = environment(config, lanes);
        AdCounts.build(env, changed, rows, lanes);
        double cpu = cpuSeconds();
        execute(cluster, env, lanes);
        Map<String, Object> run = new LinkedHashMap<>();
        run.put("cpu_s", cpuSeconds() - cpu);
        run.put("commits", Progress.commits());
        run.put("ended", Progress.seconds(AdCounts.lastResultNanos));
        run.put("counts", AdCounts.results());
        return run;
    }

    private static Map<String, Object> latency(MiniCluster cluster, Configuration config, Map<String, String> args, int lanes)
            throws Exception {
        StreamExecutionEnvironment env = environment(config, lanes);
        double warm = Double.parseDouble(args.get("warm_s"));
        Latency.build(env, Long.parseLong(args.get("rate")), Long.parseLong(args.get("rows")), lanes, warm);
        execute(cluster, env, lanes);
        return Latency.results();
    }

    private static StreamExecutionEnvironment environment(Configuration config, int lanes) {
        return StreamExecutionEnvironment.getExecutionEnvironment(config).setParallelism(lanes);
    }

    static void execute(MiniCluster cluster, StreamExecutionEnvironment env, int lanes) throws Exception {
        JobGraph job = env.getStreamGraph().getJobGraph();
        Progress.begin(lanes);
        cluster.executeJobBlocking(job);
    }

    static double cpuSeconds() {
        return ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class).getProcessCpuTime() / 1e9;
    }

    private Main() {}
}
