import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;

/**
 * Talks to HttpServe by four threads and one client with kept connections, and
 * compares every body's hash.
 * java HttpAsk.java HOST PORT
 */
public class HttpAsk {
    private static final int[] SIZES = {1, 1000, 100_000, 3_000_000};
    private static final int THREADS = 4;
    private static final int ROUNDS = 4;

    private static final HttpClient client =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private static String base;

    public static void main(String[] arguments) throws Exception {
        base = "http://" + arguments[0] + ":" + arguments[1] + "/";
        var threads = Executors.newFixedThreadPool(THREADS);
        var work = new ArrayList<Callable<Void>>();
        for (int number = 0; number < THREADS; number++) {
            work.add(HttpAsk::talk);
        }
        for (var done : threads.invokeAll(work)) {
            done.get();
        }
        threads.shutdown();
        System.out.println("ok");
        // The client's own thread would keep the machine up until it is collected.
        System.exit(0);
    }

    private static Void talk() throws Exception {
        var random = new Random();
        for (int number = 0; number < ROUNDS * SIZES.length; number++) {
            int size = SIZES[number % SIZES.length];
            byte[] sent = new byte[size];
            random.nextBytes(sent);
            var post = HttpRequest.newBuilder(URI.create(base))
                    .POST(HttpRequest.BodyPublishers.ofByteArray(sent)).build();
            String answer = client.send(post, BodyHandlers.ofString()).body();
            if (!answer.equals(sha256(sent) + " " + size)) {
                throw new Exception("POST of " + size + ": " + answer);
            }
            var get = HttpRequest.newBuilder(URI.create(base + size)).build();
            var response = client.send(get, BodyHandlers.ofByteArray());
            String expected = response.headers().firstValue("x-sha256").orElse("none");
            if (response.body().length != size || !sha256(response.body()).equals(expected)) {
                throw new Exception("GET of " + size + ": " + response.body().length + " bytes, another hash");
            }
        }
        return null;
    }

    private static String sha256(byte[] bytes) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
    }
}
