// What a JVM does with signals and code of its own: null checks by SIGSEGV, compiled loops, threads, exceptions.
import java.util.HashMap;
import java.util.Map;

class Faults {
    static int length(String text) {
        return text.length();
    }

    public static void main(String[] arguments) throws Exception {
        int caught = 0;
        long sum = 0;
        for (int i = 0; i < 200000; i++) {
            try {
                sum += length(i % 1000 == 0 ? null : "some text");
            } catch (NullPointerException expected) {
                caught++;
            }
        }
        Map<String, Integer> words = new HashMap<>();
        Thread[] threads = new Thread[4];
        for (int t = 0; t < 4; t++) {
            threads[t] = new Thread(() -> {
                for (int i = 0; i < 20000; i++)
                    synchronized (words) {
                        words.merge("word" + i % 100, 1, Integer::sum);
                    }
            });
            threads[t].start();
        }
        for (Thread thread : threads)
            thread.join();
        System.gc();
        System.out.println(caught + " " + sum + " " + words.get("word7"));
        System.exit(11);
    }
}
