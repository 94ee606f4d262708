import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.Stream;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * One point of the load sweep: a job of LoadJobs at a steady rate, and what this process uses meanwhile. Jobs run one after the other;
 * all their tasks are in this process, so what they note is in static fields.
 */
final class Load {
    static final int SOURCES = 2;
    private static final long FED_NANOS = 60_000_000_000L;
    private static final long FED_MORE_MS = 1500;
    private static final AtomicLong START = new AtomicLong(); // when the schedule began; 0 if it has not
    private static final Set<Long> COMPLETED = ConcurrentHashMap.newKeySet();
    private static final ConcurrentMap<String, LongAdder[]> SUMS = new ConcurrentHashMap<>();
    private static final ConcurrentMap<String, AtomicLongArray> COUNTS = new ConcurrentHashMap<>();
    private static AtomicLongArray read; // rows of each lane of each source

    /** When the schedule of this job began: now, if it is the first to ask. */
    static long begin() {
        START.compareAndSet(0, System.nanoTime());
        return START.get();
    }

    static void completes(long checkpoint) {
        COMPLETED.add(checkpoint);
    }

    /** [results, sum of their counts] of a sink. */
    static LongAdder[] sums(String sink) {
        return SUMS.computeIfAbsent(sink, name -> new LongAdder[] {new LongAdder(), new LongAdder()});
    }

    /** The newest count of each key of a sink. */
    static AtomicLongArray counts(String sink, int keys) {
        return COUNTS.computeIfAbsent(sink, name -> new AtomicLongArray(keys));
    }

    /** Notes how far a lane of a source was read. */
    static final class Counted<T> implements Numbered.Maker<T> {
        private final Numbered.Maker<T> maker;
        private final int source;
        private final int lanes;
        private transient int slot;

        Counted(Numbered.Maker<T> maker, int source, int lanes) {
            this.maker = maker;
            this.source = source;
            this.lanes = lanes;
        }

        @Override
        public void open(int lane, long skip) throws IOException {
            maker.open(lane, skip);
            slot = source * lanes + lane;
        }

        @Override
        public T make(long number, long dueNanos) throws IOException {
            read.lazySet(slot, number / lanes + 1);
            return maker.make(number, dueNanos);
        }
    }

    /** `point` is pipeline:rate, where a rate is a number or flood. */
    static Map<String, Object> run(
            MiniCluster cluster, StreamExecutionEnvironment env, String point, Map<String, String> args, int lanes) throws Exception {
        String[] parts = point.split(":");
        double rate = parts[1].equals("flood") ? 0 : Double.parseDouble(parts[1]);
        double warm = Double.parseDouble(args.get("warm_s"));
        double seconds = Double.parseDouble(args.get("seconds"));
        START.set(0);
        COMPLETED.clear();
        SUMS.clear();
        COUNTS.clear();
        Latency.reset();
        read = new AtomicLongArray(SOURCES * lanes);
        boolean flood = parts[1].equals("flood");
        if (parts[0].equals("files")) {
            LoadJobs.files(env, Files.createDirectories(Path.of(args.get("scratch"), "point", "in")), rate, warm);
        } else {
            LoadJobs.build(env, parts[0], rate == 0 && !flood ? Numbered.NONE : rate, warm, warm + seconds, lanes);
        }
        List<Object> samples = new ArrayList<>();
        Thread watch = new Thread(() -> watch(samples, warm, seconds));
        watch.setDaemon(true);
        watch.start();
        long lines = 0;
        if (parts[0].equals("files")) {
            lines = fed(cluster, env, args.get("feeder").split("\t"), Path.of(args.get("scratch"), "point"), parts[1], warm + seconds);
        } else {
            Main.execute(cluster, env, lanes);
        }
        watch.join();
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("pipeline", parts[0]);
        found.put("rate", parts[1]);
        found.put("samples", samples);
        found.put("read", parts[0].equals("files") ? List.of(lines) : longs(read));
        Map<String, Object> sums = new LinkedHashMap<>();
        SUMS.forEach((sink, both) -> sums.put(sink, Map.of("rows", both[0].sum(), "sum", both[1].sum())));
        found.put("sums", sums);
        Map<String, Object> counts = new LinkedHashMap<>();
        COUNTS.forEach((sink, last) -> counts.put(sink, longs(last)));
        counts.put("counts", longs(Latency.LAST));
        found.put("counts", counts);
        found.put("late", Latency.late());
        return found;
    }

    /** Run a job over files that the feeder writes meanwhile, until all of their lines are counted; how many there are. */
    private static long fed(MiniCluster cluster, StreamExecutionEnvironment env, String[] feeder, Path folder, String rate, double whole)
            throws Exception {
        JobGraph graph = env.getStreamGraph().getJobGraph();
        JobID job = cluster.submitJob(graph).get().getJobID();
        while (cluster.getJobStatus(job).get() != JobStatus.RUNNING) {
            Thread.sleep(10);
        }
        List<String> command = new ArrayList<>(List.of(feeder));
        command.addAll(List.of(folder.toString(), rate, String.valueOf(whole)));
        Process process = new ProcessBuilder(command).inheritIO().start();
        try {
            Path start = folder.resolve("start");
            while (!Files.exists(start)) {
                Thread.sleep(1);
            }
            long since = System.currentTimeMillis() * 1000 - Long.parseLong(Files.readString(start));
            START.set(System.nanoTime() - since * 1000);
            process.waitFor();
            long lines = Long.parseLong(Files.readString(folder.resolve("fed")));
            long until = System.nanoTime() + FED_NANOS;
            while (counted() < lines && System.nanoTime() < until) {
                Thread.sleep(10);
            }
            Thread.sleep(FED_MORE_MS); // so that the last lines are committed, and none is counted twice
            return lines;
        } finally {
            process.destroy();
            cluster.cancelJob(job).get();
            cluster.requestJobResult(job).get();
            try (Stream<Path> all = Files.walk(folder)) {
                all.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
            }
        }
    }

    private static long counted() {
        return longs(Latency.LAST).stream().mapToLong(Long::longValue).sum();
    }

    /** A line was read: its number is the number of those before it. */
    static void reads(long number) {
        read.set(0, Math.max(read.get(0), number + 1));
    }

    /** Samples at the beginning of the window, in its middle and at its end. */
    private static void watch(List<Object> samples, double warm, double seconds) {
        try {
            while (START.get() == 0) {
                Thread.sleep(1);
            }
            for (double offset : new double[] {warm, warm + seconds / 2, warm + seconds}) {
                long wait = START.get() + (long) (offset * 1e9) - System.nanoTime();
                Thread.sleep(Math.max(0, wait / 1_000_000));
                long rows = longs(read).stream().mapToLong(Long::longValue).sum();
                long at = (System.nanoTime() - START.get()) / 1000;
                samples.add(new Object[] {at, Main.cpuSeconds(), COMPLETED.size(), rows, memory()});
            }
        } catch (InterruptedException | IOException problem) {
            throw new IllegalStateException(problem);
        }
    }

    /** Bytes of this process, as processes.py counts them. */
    private static long memory() throws IOException {
        long found = 0;
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("RssAnon:") || line.startsWith("RssShmem:")) {
                found += Long.parseLong(line.replaceAll("[^0-9]", "")) * 1024;
            }
        }
        return found;
    }

    private static List<Long> longs(AtomicLongArray values) {
        List<Long> found = new ArrayList<>();
        for (int index = 0; index < values.length(); index++) {
            found.add(values.get(index));
        }
        return found;
    }

    private Load() {}
}
